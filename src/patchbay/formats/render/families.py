"""The writer for a format, or for a model by its name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from patchbay.formats.catalog import choose
from patchbay.formats.model_names import format_of
from patchbay.formats.render.fenced import FencedWriter
from patchbay.formats.render.table import WRITERS
from patchbay.formats.render.writer import FamilyWriter
from patchbay.formats.spec import Format
from patchbay.types import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG, ToolCall

Writer = FamilyWriter | FencedWriter

_MAX_NAME = 256


@lru_cache(maxsize=256)
def writer_for(
    format: str | Format = "auto",  # noqa: A002 - the name the API fixes
    *,
    tool_call_tag: str = DEFAULT_CALL_TAG,
    tool_result_tag: str = DEFAULT_RESULT_TAG,
    text_tools: frozenset[str] = frozenset(),
) -> Writer:
    """Return the writer of a format: its family's, or the fenced contract's with these tags. Raises ConfigurationError.

    ``text_tools``: tools whose calls the contract writes as plain text.
    """
    name = format.name if isinstance(format, Format) else format
    if name in WRITERS:
        return WRITERS[name]
    choose(format)
    return FencedWriter(tool_call_tag, tool_result_tag, text_tools)


def format_for(model: str) -> str:
    """Return the format for prompts to a model of this name; "auto", the fenced contract, if none is certain."""
    return _format_for(model) if len(model) <= _MAX_NAME else "auto"


@lru_cache(maxsize=256)
def _format_for(model: str) -> str:
    hint = format_of(model)
    writer = None if hint is None else WRITERS.get(hint.format)
    return writer.format if writer is not None and writer.by_name else "auto"


def render_calls(
    format: str | Format,  # noqa: A002 - the name the API fixes
    calls: Iterable[ToolCall],
    content: str = "",
    reasoning: str = "",
) -> str:
    """Render a turn as a model of this format would write it, its calls numbered from 0. Raises ConfigurationError."""
    writer = writer_for(format)
    numbered = [
        ToolCall(writer.call_id(number, call.name, call.id), call.name, call.raw_arguments) for number, call in enumerate(calls)
    ]
    return writer.turn(content, numbered, reasoning)
