"""Patchbay: working tool calls for every OpenAI-compatible model, also for those that only write text.

    parse, StreamParser            read the calls from a model's text
    load_format                    a custom format, or a checkpoint's, from its file
    wrap                           an OpenAI client whose ``tools=`` works
    ToolRunner, tool               the loop: model, calls, results, answer
    resolve_model                  a model by its name or URL
    patchbay proxy                 the same for any program (patchbay.proxy.create_app mounts it)

Each name is imported when it is first used, so ``import patchbay`` is quick and loads no third-party package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.checkpoint import load_format as load_format
    from patchbay.errors import InvalidRequestError as InvalidRequestError
    from patchbay.errors import MaxIterationsError as MaxIterationsError
    from patchbay.errors import PatchbayError as PatchbayError
    from patchbay.errors import ResponseFormatError as ResponseFormatError
    from patchbay.errors import ToolArgumentsError as ToolArgumentsError
    from patchbay.errors import ToolChoiceError as ToolChoiceError
    from patchbay.errors import ToolFailed as ToolFailed
    from patchbay.errors import ToolRetry as ToolRetry
    from patchbay.errors import UnknownToolError as UnknownToolError
    from patchbay.errors import UpstreamError as UpstreamError
    from patchbay.formats import StreamParser as StreamParser
    from patchbay.formats import extract_fenced_blocks as extract_fenced_blocks
    from patchbay.formats import extract_reasoning as extract_reasoning
    from patchbay.formats import parse as parse
    from patchbay.formats import parse_json as parse_json
    from patchbay.formats import render_contract as render_contract
    from patchbay.formats import render_tool_choice as render_tool_choice
    from patchbay.models.resolve import resolve_model as resolve_model
    from patchbay.models.wrap import wrap as wrap
    from patchbay.runner import ToolRunner as ToolRunner
    from patchbay.schema import ToolValidator as ToolValidator
    from patchbay.tools import ToolContext as ToolContext
    from patchbay.tools import ToolSearch as ToolSearch
    from patchbay.tools import tool as tool
    from patchbay.transcript import flatten_messages as flatten_messages
    from patchbay.types import Attachment as Attachment
    from patchbay.types import Reply as Reply
    from patchbay.types import ToolCall as ToolCall
    from patchbay.types import ToolResult as ToolResult
    from patchbay.types import ToolSpec as ToolSpec
    from patchbay.types import Usage as Usage

__version__ = "0.1.0"

__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "checkpoint": "load_format",
        "errors": "InvalidRequestError MaxIterationsError PatchbayError ResponseFormatError "
        "ToolArgumentsError ToolChoiceError ToolFailed ToolRetry UnknownToolError UpstreamError",
        "formats": "StreamParser extract_fenced_blocks extract_reasoning parse parse_json render_contract render_tool_choice",
        "models.resolve": "resolve_model",
        "models.wrap": "wrap",
        "runner": "ToolRunner",
        "schema": "ToolValidator",
        "tools": "ToolContext ToolSearch tool",
        "transcript": "flatten_messages",
        "types": "Attachment Reply ToolCall ToolResult ToolSpec Usage",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
