"""OpenAI clients of a model, wrapped or behind a proxy process, and their responses in one shape."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import openai

import patchbay
from patchbay.cli.children import Child

from .processes import listening
from .scripted_server import PATIENCE


def running_proxy(*flags: str) -> AbstractContextManager[Child]:
    """Run ``patchbay proxy`` with these flags during the block."""
    return listening([sys.executable, "-m", "patchbay", "proxy", "--port", "0", *flags], name="patchbay proxy")


@dataclass
class Choice:
    """One choice of a response, whole or assembled from its chunks."""

    content: str | None = None
    reasoning: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class ChatResponse:
    """A chat completion in the same shape whole and streamed; ``chunks`` are the raw chunks of a stream."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Any = None
    chunks: list[Any] = field(default_factory=list)
    raw: Any = None

    @property
    def first(self) -> Choice:
        """The choice of index 0."""
        return self.choices[0]


def chat(client: openai.OpenAI, model: str, *, stream: bool, **body: Any) -> ChatResponse:
    """One chat completion through the SDK, whole or streamed."""
    body.setdefault("messages", [{"role": "user", "content": "Weather in Rome?"}])
    response = ChatResponse()
    if not stream:
        completion = client.chat.completions.create(model=model, **body)
        response.raw, response.usage = completion, completion.usage
        for choice in completion.choices:
            response.choices[choice.index] = _whole_choice(choice)
        return response
    with client.chat.completions.create(model=model, stream=True, **body) as chunks:
        for chunk in chunks:
            response.chunks.append(chunk)
            response.usage = chunk.usage or response.usage
            for choice in chunk.choices:
                _add_delta(response.choices.setdefault(choice.index, Choice()), choice)
    return response


def _whole_choice(choice: Any) -> Choice:
    message = choice.message
    calls = [call for call in message.tool_calls or () if call.type == "function"]
    return Choice(
        content=message.content,
        reasoning=getattr(message, "reasoning_content", None),
        calls=[(call.function.name, call.function.arguments) for call in calls],
        ids=[call.id for call in calls],
        finish_reason=choice.finish_reason,
        extra={**message.model_dump(exclude_unset=True), "logprobs": choice.model_dump().get("logprobs")},
    )


def _add_delta(whole: Choice, choice: Any) -> None:
    delta = choice.delta
    if delta.content is not None:
        whole.content = (whole.content or "") + delta.content
    if reasoning := getattr(delta, "reasoning_content", None):
        whole.reasoning = (whole.reasoning or "") + reasoning
    for part in delta.tool_calls or ():
        if part.index == len(whole.calls):
            whole.calls.append((part.function.name, ""))
            whole.ids.append(part.id)
        name, arguments = whole.calls[part.index]
        whole.calls[part.index] = (name, arguments + (part.function.arguments or "") if part.function else arguments)
    whole.extra.update({name: value for name, value in delta.model_dump(exclude_unset=True).items() if value is not None})
    dumped = choice.model_dump()
    if dumped.get("logprobs"):
        whole.extra["logprobs"] = dumped["logprobs"]
    if choice.finish_reason is not None:
        assert whole.finish_reason is None, "two finish reasons"
        whole.finish_reason = choice.finish_reason


def sdk_client(base_url: str, **options: Any) -> openai.OpenAI:
    """The real SDK client, without retries (each request of these tests is counted)."""
    options.setdefault("api_key", "unused")
    return openai.OpenAI(base_url=base_url, max_retries=0, timeout=PATIENCE, **options)


def wrapped_client(base_url: str, **options: Any) -> openai.OpenAI:
    """A wrapped SDK client that talks to ``base_url`` directly."""
    return patchbay.wrap(sdk_client(base_url), **options)
