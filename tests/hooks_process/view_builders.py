"""Views as a hook is given them, of members that a test writes down."""

from __future__ import annotations

from typing import Any

from patchbay.hooks import LLMRequest, LLMResponse, Meta, ToolOutput, ToolRequest, ToolResultView

META = Meta("main", "main-turn-1", "", "chat:1", 2, "turn.tool.before")
NOW = {
    "context": {}, "model": "m", "messages": [], "tools": [], "options": {}, "graceful_terminal": False,
    "content": "", "reasoning": "", "tool_calls": [], "finish_reason": "", "usage": {},
    "tool": "rm", "arguments": {}, "call_id": "call-1", "digest": "", "facts": {}, "source": "", "endpoint": "",
    "annotations": {}, "duration": 0.0,
}  # fmt: skip


class Members:
    """The source of a view."""

    def __init__(self, members: dict[str, Any]) -> None:
        self.members = {"meta": META, **NOW, **members}

    def member(self, name: str, _point: str) -> Any:
        return self.members[name]


def request(**members: Any) -> LLMRequest:
    return LLMRequest(Members(members), "turn.llm.request")


def response(**members: Any) -> LLMResponse:
    return LLMResponse(Members(members), "turn.llm.response")


def call(**members: Any) -> ToolRequest:
    return ToolRequest(Members(members), "turn.tool.before")


def result(output: ToolOutput, **members: Any) -> ToolResultView:
    return ToolResultView(Members(members), "turn.tool.after", output)


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}, **function}}
