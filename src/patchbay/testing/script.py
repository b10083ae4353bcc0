"""Scripts for ScriptedUpstream: kinds of answers, as chat-completions JSON and as events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

EVENT_STREAM = "text/event-stream"
DONE = b"data: [DONE]\n\n"

_CREATED = 1_750_000_000
"""All answers have the same date, so that they compare equal."""


@dataclass(frozen=True)
class Text:
    """A completion of plain text; streamed, one event per ``piece`` characters, ``gap`` seconds apart."""

    text: str
    piece: int = 5
    finish_reason: str = "stop"
    gap: float = 0.0


@dataclass(frozen=True)
class Message:
    """A completion given as the assistant message itself: ``tool_calls``, a ``refusal``, ``reasoning_content``.

    Streamed, strings are cut into ``piece`` characters.
    """

    message: Mapping[str, Any]
    piece: int = 5
    finish_reason: str = "stop"
    gap: float = 0.0


@dataclass(frozen=True)
class Raw:
    """Bytes that are sent unchanged, one write per chunk. ``end`` follows the last chunk.

    "clean" ends the body, "cut" closes the connection within it, "hang" sends nothing more until the client disconnects.
    """

    chunks: Iterable[bytes] = ()
    status: int = 200
    content_type: str = EVENT_STREAM
    headers: Sequence[tuple[str, str]] = ()
    end: Literal["clean", "cut", "hang"] = "clean"
    gap: float = 0.0


Answer: TypeAlias = str | Text | Message | Raw
"""The answer to one request; a ``str`` is short for ``Text``."""

Script: TypeAlias = Sequence[Answer] | Callable[[dict[str, Any]], Answer]
"""Answers in the order of the requests, or a function of the request's body."""


def events(*payloads: object, done: bool = True) -> bytes:
    """Encode payloads as server-sent events (a ``str`` unchanged), with ``[DONE]`` at the end."""
    lines = (payload if isinstance(payload, str) else _compact(payload) for payload in payloads)
    return b"".join(_event(line) for line in lines) + (DONE if done else b"")


def pieces(data: bytes, size: int) -> tuple[bytes, ...]:
    """Cut bytes into writes of ``size``, as a network may split them."""
    return tuple(data[start : start + size] for start in range(0, len(data), size))


def on_the_wire(answer: Answer, body: Mapping[str, Any], *, model: str) -> Raw:
    """Encode an answer as an OpenAI-compatible server does for ``body``: as JSON, or as events if it is to be streamed."""
    if isinstance(answer, Raw):
        return answer
    if isinstance(answer, str):
        answer = Text(answer)
    if isinstance(answer, Text):
        message: Mapping[str, Any] = {"role": "assistant", "content": answer.text}
    else:
        message = {"role": "assistant", "content": None, **answer.message}
    model = body["model"] if isinstance(body.get("model"), str) else model
    choices = range(body["n"] if isinstance(body.get("n"), int) else 1)
    if body.get("stream"):
        return Raw(_stream(answer, message, body, model, choices), gap=answer.gap)
    completion = {
        **_envelope("chat.completion", model),
        "choices": [
            {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason} for index in choices
        ],
        "usage": _usage(body, message),
    }
    return Raw([_compact(completion).encode()], content_type="application/json")


def error(status: int, message: str, *, kind: str = "api_error") -> Raw:
    """Return an error answer with OpenAI's body."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return Raw([_compact(body).encode()], status=status, content_type="application/json")


def _stream(
    answer: Text | Message, message: Mapping[str, Any], body: Mapping[str, Any], model: str, choices: range
) -> Iterator[bytes]:
    envelope = _envelope("chat.completion.chunk", model)

    def chunk(index: int, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
        return _event(_compact({**envelope, "choices": [choice]}))

    for delta in _deltas(message, answer.piece):
        for index in choices:
            yield chunk(index, delta)
    for index in choices:
        yield chunk(index, {}, answer.finish_reason)
    options = body.get("stream_options")
    if isinstance(options, Mapping) and options.get("include_usage"):
        yield _event(_compact({**envelope, "choices": [], "usage": _usage(body, message)}))
    yield DONE


def _deltas(message: Mapping[str, Any], piece: int) -> Iterator[dict[str, Any]]:
    yield {"role": message["role"], "content": ""}
    for key, value in message.items():
        if key == "tool_calls":
            for index, call in enumerate(value):
                yield from _call_deltas(index, call, piece)
        elif key != "role" and isinstance(value, str):
            for start in range(0, len(value), piece):
                yield {key: value[start : start + piece]}
        elif key != "role" and value is not None:
            yield {key: value}


def _call_deltas(index: int, call: Mapping[str, Any], piece: int) -> Iterator[dict[str, Any]]:
    """Yield a native call as OpenAI streams it: the head with all but the arguments, then those in pieces."""
    function = call["function"]
    head = {"index": index, **call, "function": {"name": function["name"], "arguments": ""}}
    yield {"tool_calls": [head]}
    arguments = function["arguments"]
    for start in range(0, len(arguments), piece):
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments[start : start + piece]}}]}


def _envelope(kind: str, model: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": _CREATED, "model": model}


def _usage(body: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, int]:
    """Count four characters as a token. ``tools`` do not count: a text-only server never puts them into its prompt."""
    prompt = len(_compact(body.get("messages", []))) // 4
    completion = len(_compact(message)) // 4
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(data: str) -> bytes:
    return b"data: " + data.encode("utf-8", "surrogatepass") + b"\n\n"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
