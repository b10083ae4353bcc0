"""What a model is asked and what it answers, as callbacks see it.

What lives here: the two shapes, and their way to the seam that models have (``patchbay.models.chat``) and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from patchbay.agents.config import GenerateContentConfig
from patchbay.agents.content import Content, Part
from patchbay.agents.messages import content_reply, from_messages, renew_calls, reply_content, to_messages
from patchbay.models.chat import ChatRequest, ModelReply
from patchbay.tools import Tool, collect_tools
from patchbay.types import Message


@dataclass(kw_only=True)
class LlmRequest:
    """One round's request; a ``before_model_callback`` may change any of it, for this round.

    ``contents`` is the conversation, ``tools_dict`` the tools that the model may call, by name. ``model`` is its name, None for a
    model that was given as an object: another name asks another model of the same server. ``metadata`` is for callbacks.
    """

    contents: list[Content]
    system_instruction: str | None = None
    model: str | None = None
    config: GenerateContentConfig = field(default_factory=GenerateContentConfig)
    tools_dict: dict[str, Tool] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def append_instructions(self, instructions: Sequence[str]) -> None:
        """Add to the system instruction, a blank line between."""
        said = [self.system_instruction] if self.system_instruction else []
        self.system_instruction = "\n\n".join([*said, *instructions])

    def append_tools(self, tools: Sequence[Any]) -> None:
        """Offer more tools. Raises ConfigurationError for a name that one has already."""
        self.tools_dict = collect_tools([*self.tools_dict.values(), *tools])

    def get_tools_schema(self) -> list[dict[str, Any]]:
        """Return what the model is told of the tools, in OpenAI's form."""
        return [tool.spec.to_openai() for tool in self.tools_dict.values() if tool.offered]


@dataclass(kw_only=True)
class LlmResponse:
    """One answer of a model, or a callback's in its place. With ``error_code`` the run ends there."""

    content: Content | None = None
    partial: bool = False
    error_code: str | None = None
    error_message: str | None = None
    usage: dict[str, int] | None = None
    finish_reason: str | None = None


def as_llm_request(
    request: ChatRequest, *, config: GenerateContentConfig, tools: Mapping[str, Tool], model: str | None, metadata: dict[str, Any]
) -> LlmRequest:
    """Return a request of the loop's as callbacks see it."""
    return LlmRequest(
        contents=from_messages(request.messages),
        system_instruction=_system(request.messages),
        model=model,
        config=replace(config, stop_sequences=list(config.stop_sequences), extra=dict(config.extra)),
        tools_dict=dict(tools),
        metadata=metadata,
    )


def changed(request: ChatRequest, asked: LlmRequest, *, model: str | None) -> ChatRequest:
    """Return ``request`` as callbacks left it, but for the tools; ``model`` is the name that they were told."""
    parameters = asked.config.parameters()
    if asked.model is not None and asked.model != model:
        parameters["model"] = asked.model
    messages: Sequence[Message] = request.messages
    if asked.contents != from_messages(messages) or asked.system_instruction != _system(messages):
        renew_calls(asked.contents)
        system = [{"role": "system", "content": asked.system_instruction}] if asked.system_instruction else []
        messages = [*system, *to_messages(asked.contents, asked.tools_dict)]
    return replace(request, messages=messages, parameters=parameters)


def as_llm_response(end: ModelReply) -> LlmResponse:
    """Return a model's whole answer as callbacks see it."""
    reply = end.reply
    content = reply_content(reply, reply.tool_calls)
    return LlmResponse(content=content, usage=end.usage.counts(), finish_reason=end.finish_reason)


def as_model_reply(response: LlmResponse, *, instead_of: ModelReply | None = None) -> ModelReply:
    """Return a callback's answer as the loop takes it."""
    reply = content_reply(response.content) if response.content is not None else content_reply(Content())
    reason = response.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    if instead_of is not None:
        # What was cut off in the model's own answer stays cut off, unless the callback wrote calls of its own.
        incomplete = instead_of.reply.incomplete if not reply.tool_calls else ()
        return ModelReply(replace(reply, incomplete=incomplete), reason, instead_of.usage)
    return ModelReply(reply, reason)


def as_response(answer: Any) -> LlmResponse:
    """Return what a callback returned as an LlmResponse: one, a Content or text. Raises TypeError for anything else."""
    if isinstance(answer, LlmResponse):
        return answer
    if isinstance(answer, Content):
        return LlmResponse(content=answer)
    if isinstance(answer, str):
        return LlmResponse(content=Content("model", [Part(answer)]))
    raise TypeError(f"A callback of a model must return an LlmResponse, a Content, a text or None, not {type(answer).__name__}.")


def _system(messages: Sequence[Message]) -> str | None:
    return messages[0]["content"] if messages and messages[0]["role"] == "system" else None
