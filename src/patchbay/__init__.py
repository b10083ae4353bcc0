"""Patchbay: working tool calls for every OpenAI-compatible model, also for those that only write text.

Each public name is imported when it is first used, so ``import patchbay`` is quick and loads no third-party package.

    parse, StreamParser            parse the calls in a model's text
    load_format                    a custom format, or a checkpoint's, from its file
    wrap                           an OpenAI client whose ``tools=`` works
    ToolRunner, tool               the loop: model, calls, results, answer
    resolve_model                  a model by its name or URL
    patchbay proxy                 the same for any program (patchbay.proxy.create_app mounts it)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.checkpoint import load_format
    from patchbay.errors import (
        InvalidRequestError,
        MaxIterationsError,
        PatchbayError,
        ResponseFormatError,
        ToolArgumentsError,
        ToolChoiceError,
        ToolFailed,
        ToolRetry,
        UnknownToolError,
        UpstreamError,
    )
    from patchbay.formats import (
        StreamParser,
        extract_fenced_blocks,
        extract_reasoning,
        parse,
        parse_json,
        render_contract,
        render_tool_choice,
    )
    from patchbay.models.resolve import resolve_model
    from patchbay.models.wrap import wrap
    from patchbay.runner import ToolRunner
    from patchbay.schema import ToolValidator
    from patchbay.tools import ToolContext, tool
    from patchbay.transcript import flatten_messages
    from patchbay.types import Attachment, Reply, ToolCall, ToolResult, ToolSpec, Usage

__version__ = "0.1.0"

__all__ = [
    "Attachment",
    "InvalidRequestError",
    "MaxIterationsError",
    "PatchbayError",
    "Reply",
    "ResponseFormatError",
    "StreamParser",
    "ToolArgumentsError",
    "ToolCall",
    "ToolChoiceError",
    "ToolContext",
    "ToolFailed",
    "ToolResult",
    "ToolRetry",
    "ToolRunner",
    "ToolSpec",
    "ToolValidator",
    "UnknownToolError",
    "UpstreamError",
    "Usage",
    "extract_fenced_blocks",
    "extract_reasoning",
    "flatten_messages",
    "load_format",
    "parse",
    "parse_json",
    "render_contract",
    "render_tool_choice",
    "resolve_model",
    "tool",
    "wrap",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "Attachment": "patchbay.types",
        "InvalidRequestError": "patchbay.errors",
        "MaxIterationsError": "patchbay.errors",
        "PatchbayError": "patchbay.errors",
        "Reply": "patchbay.types",
        "ResponseFormatError": "patchbay.errors",
        "StreamParser": "patchbay.formats",
        "ToolArgumentsError": "patchbay.errors",
        "ToolCall": "patchbay.types",
        "ToolChoiceError": "patchbay.errors",
        "ToolContext": "patchbay.tools",
        "ToolFailed": "patchbay.errors",
        "ToolResult": "patchbay.types",
        "ToolRetry": "patchbay.errors",
        "ToolRunner": "patchbay.runner",
        "ToolSpec": "patchbay.types",
        "ToolValidator": "patchbay.schema",
        "UnknownToolError": "patchbay.errors",
        "UpstreamError": "patchbay.errors",
        "Usage": "patchbay.types",
        "extract_fenced_blocks": "patchbay.formats",
        "extract_reasoning": "patchbay.formats",
        "flatten_messages": "patchbay.transcript",
        "load_format": "patchbay.checkpoint",
        "parse": "patchbay.formats",
        "parse_json": "patchbay.formats",
        "render_contract": "patchbay.formats",
        "render_tool_choice": "patchbay.formats",
        "resolve_model": "patchbay.models.resolve",
        "tool": "patchbay.tools",
        "wrap": "patchbay.models.wrap",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
