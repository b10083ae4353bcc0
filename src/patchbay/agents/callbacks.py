"""Callbacks of agents and their models, as callbacks of the executor and hooks of a turn.

A callback is sync or async, one or a list; the first result other than None counts. ``before_tool(ctx, name, args)`` and
``after_tool(ctx, name, result)`` may have another parameter, ``tool_context``; each ``after_tool`` gets the result of the
previous one. They are not called for the tool of a typed answer. Calls in the answer of a model's callback run as the model's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from patchbay.agents.base import InvocationContext
from patchbay.agents.content import Content, Part
from patchbay.agents.convert import content_reply, from_messages, renew_calls, reply_content, to_messages
from patchbay.agents.run_config import GenerateContentConfig, RunFailed, callback_errors
from patchbay.executor.callbacks import Callback, Callbacks, as_callbacks, call_and_await, first_answer
from patchbay.loop.hooks import RequestHookView, ResponseHookView
from patchbay.models.chat_model import ChatRequest, ModelReply
from patchbay.tools import Tool, ToolContext, collect_tools
from patchbay.types import Message, ToolCall

if TYPE_CHECKING:
    from patchbay.hooks import RegisteredHook


def tool_hook(callback: Callback) -> Callback:
    """Return a ``before_tool(ctx, name, args)`` or ``after_tool(ctx, name, result)`` callback as a callback of the executor."""
    wants_context = _takes_tool_context(callback)

    async def hook(_call: ToolCall, tool: Tool, arguments: dict[str, Any], context: ToolContext, *value: Any) -> Any:
        named = {"tool_context": context} if wants_context else {}
        return await call_and_await(callback, context.invocation_context, tool.name, *(value or (arguments,)), **named)

    return hook


def _takes_tool_context(callback: Callback) -> bool:
    try:
        return "tool_context" in inspect.signature(callback).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return False


@dataclass(kw_only=True)
class LlmRequest:
    """One round's request; a ``before_model_callback`` may change any of it, for this round.

    ``contents`` is the conversation, ``tools_dict`` the tools that the model may call, by name. ``model`` is its name, None for a
    model object: another name selects another model of the same server. ``metadata`` is for callbacks.
    """

    contents: list[Content]
    system_instruction: str | None = None
    model: str | None = None
    config: GenerateContentConfig = field(default_factory=GenerateContentConfig)
    tools_dict: dict[str, Tool] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def append_instructions(self, instructions: Sequence[str]) -> None:
        """Append paragraphs to the system instruction."""
        before = [self.system_instruction] if self.system_instruction else []
        self.system_instruction = "\n\n".join([*before, *instructions])

    def append_tools(self, tools: Sequence[Any]) -> None:
        """Add tools. Raises ConfigurationError for a duplicate name."""
        self.tools_dict = collect_tools([*self.tools_dict.values(), *tools])

    def get_tools_schema(self) -> list[dict[str, Any]]:
        """Return the tools' specs in OpenAI's format."""
        return [tool.spec.to_openai() for tool in self.tools_dict.values() if tool.offered]


@dataclass(kw_only=True)
class LlmResponse:
    """A model's answer, or a callback's instead of it. ``error_code`` ends the run."""

    content: Content | None = None
    partial: bool = False
    error_code: str | None = None
    error_message: str | None = None
    usage: dict[str, int] | None = None
    finish_reason: str | None = None


def as_llm_request(
    request: ChatRequest, *, config: GenerateContentConfig, tools: Mapping[str, Tool], model: str | None, metadata: dict[str, Any]
) -> LlmRequest:
    """Return a request of the loop for callbacks."""
    return LlmRequest(
        contents=from_messages(request.messages),
        system_instruction=_system(request.messages),
        model=model,
        config=replace(config, stop_sequences=list(config.stop_sequences), extra=dict(config.extra)),
        tools_dict=dict(tools),
        metadata=metadata,
    )


def changed(request: ChatRequest, view: LlmRequest, *, model: str | None) -> ChatRequest:
    """Return ``request`` with the changes that callbacks made to ``view``, except tools; ``model`` is the name it had."""
    parameters = view.config.parameters()
    if view.model is not None and view.model != model:
        parameters["model"] = view.model
    messages: Sequence[Message] = request.messages
    if view.contents != from_messages(messages) or view.system_instruction != _system(messages):
        renew_calls(view.contents)
        system = [{"role": "system", "content": view.system_instruction}] if view.system_instruction else []
        messages = [*system, *to_messages(view.contents, view.tools_dict)]
    return replace(request, messages=messages, parameters=parameters)


def as_llm_response(end: ModelReply) -> LlmResponse:
    """Return a model's answer for callbacks."""
    reply = end.reply
    content = reply_content(reply, reply.tool_calls)
    return LlmResponse(content=content, usage=end.usage.counts(), finish_reason=end.finish_reason)


def as_model_reply(response: LlmResponse, *, instead_of: ModelReply | None = None) -> ModelReply:
    """Return a callback's answer for the loop."""
    reply = content_reply(response.content or Content())
    reason = response.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    if instead_of is not None:
        # Incomplete calls of the model's answer stay, unless the callback wrote calls.
        incomplete = instead_of.reply.incomplete if not reply.tool_calls else ()
        return ModelReply(replace(reply, incomplete=incomplete), reason, instead_of.usage)
    return ModelReply(reply, reason)


def as_response(answer: Any) -> LlmResponse:
    """Return a callback's result (an LlmResponse, a Content or text) as an LlmResponse. Raises TypeError for anything else."""
    if isinstance(answer, LlmResponse):
        return answer
    if isinstance(answer, Content):
        return LlmResponse(content=answer)
    if isinstance(answer, str):
        return LlmResponse(content=Content("model", [Part(answer)]))
    raise TypeError(f"A callback of a model must return an LlmResponse, a Content, a text or None, not {type(answer).__name__}.")


def _system(messages: Sequence[Message]) -> str | None:
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else None


def model_hooks(
    before: Callbacks, after: Callbacks, describe: Callable[[], tuple[str | None, GenerateContentConfig]]
) -> tuple[RegisteredHook, ...]:
    """Return the callbacks around an agent's model as hooks; ``describe`` returns the model's name and configuration."""
    points: dict[str, Any] = {}
    if before:
        points["before_llm"] = partial(_before, before, describe)
    if after:
        points["after_llm"] = partial(_after, after)
    if not points:
        return ()
    from patchbay.hooks import native

    return (native("callbacks of the model", **points),)


async def _before(
    callbacks: Callbacks, describe: Callable[[], tuple[str | None, GenerateContentConfig]], view: RequestHookView
) -> ModelReply | None:
    """Call the callbacks before a request; return the answer of the first that gives one. Raises RunFailed."""
    ctx: InvocationContext = view.run.agent_scope.invocation_context
    run, request = view.run, view.request
    name, config = describe()
    with callback_errors():
        visible = as_llm_request(request, config=config, tools=run.tools, model=name, metadata={"user_id": ctx.user_id})
        answer = await first_answer(as_callbacks(callbacks, "A callback"), ctx, visible)
        before = run.tools
        run.override_tools(collect_tools(visible.tools_dict.values()))
        if answer is not None:
            return as_model_reply(await _checked(ctx, as_response(answer)))
        request = changed(request, visible, model=name)
        if run.tools is not before:
            request = replace(request, tools=run.specs, tool_choice=view.tool_choice if run.specs else None)
        view.request = request
    return None


async def _after(callbacks: Callbacks, view: ResponseHookView) -> None:
    """Call the callbacks after an answer, and replace it by what they return or have changed. Raises RunFailed."""
    ctx: InvocationContext = view.run.agent_scope.invocation_context
    end = view.end
    with callback_errors():
        response = as_llm_response(end)
        answer = await first_answer(as_callbacks(callbacks, "A callback"), ctx, response)
        if answer is None and response == as_llm_response(end):
            return
        answer = response if answer is None else as_response(answer)
        view.end = as_model_reply(await _checked(ctx, answer), instead_of=end)


async def _checked(ctx: InvocationContext, response: LlmResponse) -> LlmResponse:
    if response.error_code is not None:
        failure = RunFailed(response.error_code, response.error_message or "")
        await ctx.publish("llm.error", {"error": failure.code, "message": str(failure)})
        raise failure
    return response
