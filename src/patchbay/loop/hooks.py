"""The hooks around a turn's requests and answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from patchbay.errors import InvalidRequestError
from patchbay.executor import Run
from patchbay.models.chat_model import ChatRequest, ModelReply
from patchbay.transcript import normalize
from patchbay.types import Reply, ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.hooks import TurnHooks
    from patchbay.hooks.tools import Injection


_NOT_OPTIONS: Final = frozenset(
    {
        # The request has members for it, under these names or others.
        "model", "messages", "tools", "tool_choice", "functions", "function_call", "system", "instructions", "system_instruction",
        # The turn depends on it.
        "stream", "n",
        # They may contain any of these, or replace the prompt.
        "extra_body", "chat_template", "cached_content",
        # They set the request's target and credentials.
        "extra_headers", "extra_query", "http_options", "api_key", "api_base", "base_url",
    }
)  # fmt: skip
"""Parameters that hooks neither see nor set by ``options``; the caller's own values stay."""


@dataclass(slots=True, eq=False)
class RequestHookView:
    """A request under review by hooks; a program's own callback gets this, and may replace ``request``.

    ``tool_choice`` is the caller's, also if there are no tools yet.
    """

    hooks: TurnHooks
    run: Run
    request: ChatRequest
    iteration: int
    tool_choice: Any

    def member(self, name: str, point: str) -> Any:
        """Return a member that hooks see. Raises KeyError."""
        return _OF_REQUEST[name](self, point)

    def apply(self, changes: Mapping[str, Any], added: Sequence[Injection]) -> None:
        """Apply a hook's changes; tools that it has added can be called from now on."""
        run, request = self.run, self.request
        if added:
            from patchbay.hooks import InjectedTool

            run.set_tools({**run.tools, **{each.spec.name: InjectedTool(each, self.hooks.scope) for each in added}})
        parameters = request.parameters
        if "options" in changes:
            parameters = _with_options(parameters, changes["options"])
        if "model" in changes:
            parameters = {**parameters, "model": changes["model"]}
        tools = _specs(changes["tools"], run) if "tools" in changes else request.tools
        self.request = replace(
            request,
            messages=normalize(changes["messages"]) if "messages" in changes else request.messages,
            tools=tools,
            tool_choice=self.tool_choice if tools else None,
            parameters=parameters,
        )

    def owner_of(self, name: str) -> str | None:
        """Return the hook that has added the tool of this name, "" if none has; None for an unknown tool."""
        return tool.owner if (tool := self.run.tools.get(name)) is not None else None


@dataclass(slots=True, eq=False)
class ResponseHookView:
    """A model's answer under review by hooks; a program's own callback gets this, and may replace ``end``."""

    hooks: TurnHooks
    run: Run
    request: ChatRequest
    end: ModelReply
    iteration: int

    def member(self, name: str, point: str) -> Any:
        """Return a member that hooks see. Raises KeyError."""
        return _OF_REPLY[name](self, point)

    def apply(self, changes: Mapping[str, Any]) -> None:
        """Apply a hook's changes."""
        reply = self.end.reply
        calls, cut = reply.tool_calls, reply.incomplete
        if "tool_calls" in changes and changes["tool_calls"] != self.member("tool_calls", ""):
            calls, cut = _calls(changes["tool_calls"], reply), ()
        content = changes.get("content", reply.content)
        changed = replace(
            reply,
            content=content or (None if calls else ""),
            reasoning=changes.get("reasoning", reply.reasoning) or None,
            tool_calls=calls,
            incomplete=cut,
        )
        self.end = replace(self.end, reply=changed, finish_reason=changes.get("finish_reason", self.end.finish_reason) or None)


def _model(view: RequestHookView | ResponseHookView, _point: str) -> str:
    named = view.request.parameters.get("model")
    return named if isinstance(named, str) else view.hooks.scope.model


def _options(view: RequestHookView, _point: str) -> dict[str, Any]:
    return {name: value for name, value in view.request.parameters.items() if name not in _NOT_OPTIONS}


def _with_options(parameters: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    from patchbay.hooks.registered import KEEP

    given = {name: parameters.get(name, KEEP) if value is KEEP else value for name, value in options.items()}
    return {
        **{name: value for name, value in parameters.items() if name in _NOT_OPTIONS},
        **{name: value for name, value in given.items() if name not in _NOT_OPTIONS and value is not KEEP},
    }


def _usage(view: ResponseHookView, _point: str) -> dict[str, int]:
    usage = view.end.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


_AROUND: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "meta": lambda view, point: view.hooks.scope.meta(point, view.iteration),
    "context": lambda view, _point: view.hooks.scope.context,
    "model": _model,
}
_OF_REQUEST: Final[Mapping[str, Callable[[RequestHookView, str], Any]]] = {
    **_AROUND,
    "messages": lambda view, _point: view.request.messages,
    "tools": lambda view, _point: [spec.to_openai() for spec in view.request.tools],
    "options": _options,
    "graceful_terminal": lambda view, _point: view.run.tools_disabled,
}
_OF_REPLY: Final[Mapping[str, Callable[[ResponseHookView, str], Any]]] = {
    **_AROUND,
    "content": lambda view, _point: view.end.reply.content or "",
    "reasoning": lambda view, _point: view.end.reply.reasoning or "",
    "tool_calls": lambda view, _point: [call.to_openai() for call in view.end.reply.tool_calls],
    "finish_reason": lambda view, _point: view.end.finish_reason or "",
    "usage": _usage,
}


def _specs(tools: Sequence[Any], run: Run) -> tuple[ToolSpec, ...]:
    """Return tools as specs, unchanged ones as the run's own. Invalid ones are left out."""
    known = {spec.name: spec for spec in run.specs}
    specs: dict[str, ToolSpec] = {}
    for tool in tools:
        try:
            spec = ToolSpec.from_openai(tool)
        except InvalidRequestError:
            continue
        if spec.name not in specs:
            original = known.get(spec.name)
            specs[spec.name] = original if original is not None and original.to_openai() == tool else spec
    return tuple(specs.values())


def _calls(written: Sequence[Mapping[str, Any]], reply: Reply) -> tuple[ToolCall, ...]:
    """Return the calls that a hook wrote; unchanged calls of the model are the same objects."""
    own = {call.id: call for call in reply.tool_calls}
    calls = []
    for each in written:
        function = each["function"]
        call_id, name, arguments = each.get("id") or "", function["name"], function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {})
        original = own.get(call_id)
        is_same = original is not None and original.name == name and original.raw_arguments == arguments
        calls.append(original if original is not None and is_same else ToolCall(call_id, name, arguments))
    return tuple(calls)
