"""Instructions about tools for a model without native tool calls, and the demands of ``tool_choice`` as text.

The text depends on the tools and options only, so the same tools give the same bytes turn after turn and the upstream's prompt
cache holds. Each family's layout is in ``render``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchbay.formats.render import writer_for
from patchbay.formats.render.fenced import render_call, render_result, render_tools
from patchbay.formats.spec import Format
from patchbay.types import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG, ToolCall, ToolSpec, read_specs

__all__ = [
    "DEFAULT_CALL_TAG",
    "DEFAULT_RESULT_TAG",
    "ContractContext",
    "Template",
    "allowed_names",
    "render_call",
    "render_contract",
    "render_result",
    "render_tool_choice",
    "render_tools",
]


@dataclass(frozen=True)
class ContractContext:
    """Input of a ``template``.

    ``rendered_tools``: the list of tools in the format's layout. ``format``: the format's name ("fenced" for the contract, whose
    labels are the two tags). ``example_call``: a call of a tool that does not exist.
    """

    tools: Sequence[ToolSpec]
    rendered_tools: str
    tool_call_tag: str
    tool_result_tag: str
    format: str = "fenced"
    example_call: str = ""


Template = Callable[[ContractContext], str]


def render_contract(
    tools: Iterable[Any],
    *,
    format: str | Format = "auto",  # noqa: A002 - the name the API fixes
    tool_call_tag: str = DEFAULT_CALL_TAG,
    tool_result_tag: str = DEFAULT_RESULT_TAG,
    include_examples: bool = True,
    template: Template | None = None,
) -> str:
    """Render the instructions that teach a format; ``template`` replaces them all.

    "auto", "fenced" and formats without a writer teach the fenced contract, whose blocks the tags label. Raises
    InvalidRequestError for invalid tools, ConfigurationError for an unknown format.
    """
    specs = read_specs(list(tools))
    writer = writer_for(format, tool_call_tag=tool_call_tag, tool_result_tag=tool_result_tag)
    if template is None:
        return writer.instructions(specs, examples=include_examples)
    example = writer.calls([ToolCall(writer.call_id(0, "example", "call_0"), "example", '{"argument": "value"}')])
    return template(ContractContext(specs, writer.listing(specs), tool_call_tag, tool_result_tag, writer.format, example))


def render_tool_choice(choice: Any, *, parallel: bool = True) -> str:
    """Render the demand of ``tool_choice`` as a sentence, and that of ``parallel_tool_calls=False`` as another; "" for none."""
    demand = _demand(choice)
    if parallel or choice == "none" or (isinstance(choice, Mapping) and choice.get("type") == "function"):
        return demand
    return f"{demand} Call one tool at most; you can call the next one when you have its result.".strip()


def _demand(choice: Any) -> str:
    if choice == "required":
        return "Important: call at least one tool now. Do not answer in plain text yet."
    if choice == "none":
        return "Important: do not call a tool now. Answer in plain text."
    if not isinstance(choice, Mapping):
        return ""
    kind = choice.get("type")
    function = choice.get("function")
    if kind == "function" and isinstance(function, Mapping) and isinstance(function.get("name"), str):
        name = json.dumps(function["name"], ensure_ascii=False)
        return f"Important: call the tool {name} now, exactly once, and no other tool. Do not answer in plain text yet."
    allowed = choice.get("allowed_tools")
    if kind == "allowed_tools" and isinstance(allowed, Mapping):
        names = ", ".join(json.dumps(name, ensure_ascii=False) for name in allowed_names(allowed))
        if allowed.get("mode") == "required":
            return f"Important: call at least one of these tools now, and no other: {names}. Do not answer in plain text yet."
        return f"Important: if you call a tool now, it must be one of these: {names}."
    return ""


def allowed_names(allowed: Mapping[str, Any]) -> list[str]:
    """Return the names in OpenAI's ``allowed_tools``; entries that name no function are skipped."""
    names = []
    tools = allowed.get("tools")
    for tool in tools if isinstance(tools, list | tuple) else ():
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str):
            names.append(name)
    return names
