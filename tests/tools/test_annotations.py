"""Annotations, titles and sources of tools: for policies, not for models."""

from __future__ import annotations

import pytest

from patchbay import tool
from patchbay.server.callback_tool import CallbackDispatcher
from patchbay.server.settings import ToolsSettings
from patchbay.tools import BaseTool, ToolDefinition
from patchbay.tools.registry import Registration

DESTRUCTIVE = {"destructive": True}


class Declared(BaseTool):
    annotations = DESTRUCTIVE

    def get_declaration(self):
        return {"name": "a", "parameters": {"type": "object"}}

    async def run_async(self, *, args, tool_context):
        return None


def test_every_kind_of_tool_accepts_annotations():
    @tool(annotations=DESTRUCTIVE)
    def decorated() -> None: ...

    class Shop:
        @tool(annotations=DESTRUCTIVE)
        def method(self) -> None: ...

    kinds = [
        decorated,
        tool(handler=print, name="p", parameters={"type": "object"}, annotations=DESTRUCTIVE),
        Shop().method,
        ToolDefinition("d", handler=print, metadata={"annotations": DESTRUCTIVE}),
        Declared("a"),
    ]
    assert [DESTRUCTIVE] * len(kinds) == [each.annotations for each in kinds]
    assert not any("destructive" in str(each.spec) for each in kinds)


def test_default_annotations_are_empty_and_immutable():
    nothing = ToolDefinition("d", handler=print).annotations
    assert {} == nothing
    with pytest.raises(TypeError):
        nothing["read_only"] = True


def test_every_kind_of_tool_can_have_a_title_and_a_schema_of_its_results():
    of_results = {"type": "object", "required": ["celsius"]}

    @tool(title="A title", output_schema=of_results)
    def decorated() -> None: ...

    class Titled(Declared):
        title = "A title"
        output_schema = of_results

    kinds = [
        decorated,
        ToolDefinition("d", handler=print, metadata={"title": "A title", "output_schema": of_results}),
        Titled("a"),
        Declared("a", title="A title", output_schema=of_results),
    ]
    assert [("A title", of_results)] * len(kinds) == [(each.title, each.output_schema) for each in kinds]
    assert ("", None) == (Declared("a").title, Declared("a").output_schema)


def test_source_of_a_local_tool_defaults_to_empty():
    assert ["", "builtin"] == [ToolDefinition("d", handler=print, metadata=about).source for about in ({}, {"source": "builtin"})]


@pytest.mark.parametrize(("source", "expected"), [("plugin:x", "plugin:x"), ("", "external")])
def test_remote_tool_cannot_pass_for_an_in_process_one(source, expected):
    dispatcher = CallbackDispatcher(ToolsSettings())
    registration = Registration("t", callback_url="http://127.0.0.1:9/call", source=source, metadata={"annotations": DESTRUCTIVE})
    made = dispatcher.tool(registration)
    assert (expected, DESTRUCTIVE) == (made.source, made.annotations)
