"""OpenAI clients of a model, wrapped or behind a proxy process, and their responses in one shape."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import openai

import patchbay

from .processes import Process
from .scripted_server import PATIENCE

_ENVIRONMENT = (
    "UPSTREAM_BASE_URL", "UPSTREAM_API_KEY", "PORT", "HOST", "PROXY_API_KEY", "PROXY_LOG_FILE", "FORCE_COLOR"
)  # fmt: skip


def clean_environment() -> dict[str, str]:
    """The environment without what the command line reads from it."""
    return {name: value for name, value in os.environ.items() if name not in _ENVIRONMENT}


@dataclass
class Proxy:
    """A running ``patchbay proxy``; ``url`` ends in the base path."""

    process: Process
    output: list[str] = field(default_factory=list)
    url: str = ""

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return urlsplit(self.url).port or 0


@contextmanager
def running_proxy(*flags: str) -> Iterator[Proxy]:
    """Start ``patchbay proxy`` with ``flags``, wait until it listens, and stop it with SIGTERM."""
    process = Process(
        [sys.executable, "-m", "patchbay", "proxy", "--port", "0", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )
    proxy = Proxy(process)
    listening = threading.Event()
    drain = threading.Thread(target=_read_output, args=(proxy, listening), daemon=True)
    drain.start()
    try:
        assert listening.wait(PATIENCE), proxy.output
        assert proxy.url, proxy.output
        yield proxy
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)
        drain.join(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def listening_url(line: str) -> str:
    """The address in a proxy's "listening on" line; empty for any other line."""
    found = re.search(r"listening on (http://\S+)", line)
    return found[1] if found else ""


def _read_output(proxy: Proxy, listening: threading.Event) -> None:
    assert proxy.process.stdout is not None
    for line in proxy.process.stdout:
        proxy.output.append(line)
        if url := listening_url(line):
            proxy.url = url
            listening.set()
    listening.set()


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


@dataclass
class Response:
    """An HTTP response; ``body`` is what could be read, ``cut`` is true if the connection ended before the body did."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False

    @property
    def json(self) -> Any:
        """The body, read as JSON."""
        return json.loads(self.body)


def http_request(
    port: int, method: str, target: str, body: bytes | Mapping[str, Any] = b"", headers: Mapping[str, str] | None = None
) -> Response:
    """One plain HTTP request; a mapping is sent as JSON."""
    sent = dict(headers or {})
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
        sent.setdefault("content-type", "application/json")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, target, body=body or None, headers=sent)
        response = connection.getresponse()
        cut = False
        try:
            data = response.read()
        except http.client.IncompleteRead as error:
            data, cut = error.partial, True
        except ConnectionError:
            data, cut = b"", True
        return Response(response.status, {name.lower(): value for name, value in response.getheaders()}, data, cut)
    finally:
        connection.close()


def sse_payloads(body: bytes) -> list[str]:
    """The data lines of an event stream, comments left out."""
    return [line[5:].strip() for line in body.decode().split("\n") if line.startswith("data:")]
