"""Traces for OpenTelemetry: the spans of a turn, made when it has ended of what is kept of it, and sent by OTLP over HTTP.

A turn has one span (``invoke_agent`` of a role, or that of a proxied request), and below it one for each request to the model's
server (``chat``) and one for each call of a tool that ran here (``execute_tool``). Everything but the switch and the content
comes from OpenTelemetry's own environment variables.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec

import patchbay
from patchbay._redaction import Redactor
from patchbay._trace import TRACE, Trace, begin, set_exporter
from patchbay.errors import ConfigurationError
from patchbay.models.attempt import Attempt, Counts
from patchbay.models.wire import decode
from patchbay.server import span_names as names
from patchbay.server.otlp import CLIENT, INTERNAL, SERVER, Envelope, attributes, encode_span, span_shape
from patchbay.server.settings import ServeOptions
from patchbay.server.turns import Turn, counts_of_turn

if TYPE_CHECKING:
    from patchbay.hooks.events import CallRecord

_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT: Final = frozenset({"true", "span_only", "span_and_event"})
_PROTOCOL: Final = "http/protobuf"
_MAX_CONTENT_CHARS: Final = 256 * 1024
"""Maximum characters of a message's part."""
_LAST_SECONDS: Final = 3.0

Pairs = tuple[tuple[str, Any], ...]

_redact: Final = Redactor()
_logger = logging.getLogger(__name__)


def check_telemetry(options: ServeOptions) -> None:
    """Raise ConfigurationError where traces are wanted and cannot be sent."""
    if not options.otel:
        if options.otel_content:
            raise ConfigurationError("--otel-content needs --otel.")
        return
    if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigurationError("--otel needs OpenTelemetry: pip install 'patchbay-tools[otel]'")
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        if (given := os.environ.get(name, "").strip()) not in ("", _PROTOCOL):
            raise ConfigurationError(f"{name} is {given!r}, and traces are sent by {_PROTOCOL} only: unset it.")


@contextlib.contextmanager
def sending_traces(options: ServeOptions) -> Iterator[None]:
    """Send traces during the block, and what is left of them at its end; nothing where they are not wanted.

    For the process that serves. OTEL_SDK_DISABLED=true and OTEL_TRACES_EXPORTER=none switch it off.
    """
    is_off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    if not options.otel or is_off:
        yield
        return
    spans = SpanExporter(content=options.otel_content or os.environ.get(_CONTENT, "").lower() in _WITH_CONTENT)
    set_exporter(spans)
    try:
        yield
    finally:
        set_exporter(None)
        spans.close()


class _Spans(msgspec.Struct, gc=False):
    """The encoded spans of a turn or a call, in the place of one span in OpenTelemetry's queue."""

    context: Any
    data: bytes


class SpanExporter:
    """Makes the spans of turns and calls, and gives them to OpenTelemetry's batches, which a thread of it sends.

    ``content``: also what models were sent and wrote, without secrets. Raises ConfigurationError for a version of OpenTelemetry's
    exporter that does not send encoded spans.
    """

    def __init__(self, *, content: bool) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
        from opentelemetry.sdk.trace.sampling import Decision

        is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        provider = TracerProvider(
            resource=Resource.create({} if is_named else {SERVICE_NAME: "patchbay"}), shutdown_on_exit=False
        )
        envelope = Envelope(
            provider.resource.attributes, scope="patchbay", version=patchbay.__version__, schema_url=names.SCHEMA_URL
        )

        class EncodedExporter(OTLPSpanExporter):
            """Sends spans that are encoded already; all else, such as retries, is the exporter's own."""

            def export(self, spans: Any) -> SpanExportResult:
                sent = self._client.export(envelope.encode([each.data for each in spans]))
                return SpanExportResult.SUCCESS if sent.success else SpanExportResult.FAILURE

        exporter = EncodedExporter()
        if not hasattr(exporter, "_client"):
            raise ConfigurationError("--otel needs another version of OpenTelemetry: pip install 'patchbay-tools[otel]'")
        self._content = content
        self._api, self._sampler, self._dropped = trace, provider.sampler, Decision.DROP
        self._follows_parent = os.environ.get("OTEL_TRACES_SAMPLER", "") in ("", "parentbased_always_on")  # (quicker so)
        self._processor = BatchSpanProcessor(exporter)
        self._context = SimpleNamespace(trace_flags=SimpleNamespace(sampled=True))  # all that the queue asks for

    def close(self) -> None:
        """Send what is left. A collector that does not answer is waited for ``_LAST_SECONDS``; the exporter would for 30."""
        sending = threading.Thread(target=self._processor.shutdown, name="patchbay-last-spans", daemon=True)
        sending.start()
        sending.join(_LAST_SECONDS)
        if sending.is_alive():
            _logger.warning("The last spans were not sent: the collector has not taken them within %g s", _LAST_SECONDS)

    def is_sampled(self, trace_id: int, parent: Trace | None) -> bool:
        """Decide by OTEL_TRACES_SAMPLER whether a span is exported."""
        api, context = self._api, None
        if self._follows_parent:
            return parent is None or parent.is_sampled
        if parent is not None:
            remote = api.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=api.TraceFlags(parent.flags))
            context = api.set_span_in_context(api.NonRecordingSpan(remote))
        decision = self._sampler.should_sample(context, trace_id, names.INVOKE_AGENT, api.SpanKind.SERVER)
        return decision.decision is not self._dropped

    def add_turn(self, turn: Turn) -> None:
        """Export the spans of a turn that has ended."""
        trace: Trace | None = turn.trace
        if trace is None or not trace.is_sampled:
            return
        try:
            self._processor.on_end(_Spans(self._context, self._turn(turn, trace)))  # type: ignore[arg-type]
        except Exception:
            _logger.exception("The spans of a turn could not be made")

    def _turn(self, turn: Turn, trace: Trace) -> bytes:
        """Return the spans of a turn, and of its requests to models."""
        last = len(turn.attempts)
        code, tokens = turn.error.partition(":")[0], counts_of_turn(turn)
        counted = _counted(tokens)
        shape = _turn_shape(turn.agent, turn.protocol, turn.model, turn.status, code)
        own = attributes(((names.REQUEST_ID, turn.id), (names.CONVERSATION_ID, turn.session))) + counted
        spans = [encode_span(shape, trace, trace.span_id, trace.parent_id, turn.began, turn.ended, own)]
        for number, attempt in enumerate(turn.attempts, 1):
            status, purpose = attempt.status, attempt.purpose
            error = str(status) if status >= 400 else code if number == last and not status else ""
            shape = _chat_shape(turn.model, turn.stream, status, error, purpose, attempt.mode, attempt.constraint)
            own = counted if last == 1 else _counted(attempt.counts)
            if attempt.first:
                own += attributes(((names.TIME_TO_FIRST_CHUNK, attempt.first - attempt.began),))
            if self._content:
                own += attributes(self._messages(turn, attempt).items())
            span_id, ended = trace.attempt(number), attempt.ended or turn.ended
            spans.append(encode_span(shape, trace, span_id, trace.span_id, attempt.began, ended, own))
        return b"".join(spans)

    def add_call(self, record: CallRecord) -> None:
        """Export the span of a settled call; a Recorder. Outside of a turn it may be the first of its trace."""
        trace = TRACE.get() or begin()
        if trace is None or not trace.is_sampled:
            return
        span_id, parent_id = trace.child(record.call_id), trace.span_id
        if trace.call_id == record.call_id:  # made in the context of the call itself
            span_id, parent_id = trace.span_id, trace.parent_id
        source, agent = record.source, record.meta.agent_id
        own = attributes(
            (
                (names.TOOL_CALL_ID, record.call_id),
                (names.REQUEST_ID, record.meta.turn_id),
                (names.DECISIONS, tuple([f"{by} {decision}" for by, _, decision in record.decisions])),
            )
        )
        shape, began = _call_shape(record.tool, source, agent, record.code, record.is_error), record.time - record.seconds
        span = encode_span(shape, trace, span_id, parent_id, began, record.time, own)
        self._processor.on_end(_Spans(self._context, span))  # type: ignore[arg-type]

    def _messages(self, turn: Turn, attempt: Attempt) -> dict[str, Any]:
        """Return what the model was sent and wrote, as the conventions' JSON schemas have it."""
        body = decode(attempt.body) if attempt.body else {}
        messages = body.get("messages") if isinstance(body, dict) else None
        sent = [_message(each) for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
        parts = [{"type": "text", "content": attempt.text[:_MAX_CONTENT_CHARS]}] if attempt.text else []
        parts += [_call(call_id, name, arguments) for call_id, name, arguments in attempt.calls]
        written = [{"role": "assistant", "parts": parts, "finish_reason": "tool_call" if attempt.calls else "stop"}]
        encoded = {names.INPUT_MESSAGES: sent, names.OUTPUT_MESSAGES: written if parts else []}
        redact = turn.redact.text
        texts = {name: _redact.text(redact(msgspec.json.encode(value).decode())) for name, value in encoded.items() if value}
        return {**texts, names.REASON: attempt.reason}


@lru_cache(maxsize=256)
def _turn_shape(agent: str, protocol: str, model: str, status: int, code: str) -> bytes:
    pairs: Pairs = ()
    if agent:
        pairs = ((names.OPERATION, names.INVOKE_AGENT), (names.PROVIDER, "patchbay"), (names.AGENT_NAME, agent))
    pairs += (
        (names.REQUEST_MODEL, model),
        (names.PROTOCOL, protocol),
        (names.STATUS_CODE, status or None),
        (names.ERROR_TYPE, code),
    )
    name = f"{names.INVOKE_AGENT} {agent}" if agent else f"proxy {protocol}"
    return span_shape(name, SERVER, pairs, failed=bool(code))


@lru_cache(maxsize=256)
def _chat_shape(model: str, stream: bool, status: int, error: str, purpose: str, mode: str, constraint: str) -> bytes:  # noqa: FBT001
    pairs: Pairs = (
        (names.OPERATION, names.CHAT),
        (names.PROVIDER, "openai"),  # the API that it is asked by
        (names.REQUEST_MODEL, model),
        (names.REQUEST_STREAM, stream),
        (names.STATUS_CODE, status or None),
        (names.ERROR_TYPE, error),
        (names.PURPOSE, purpose if purpose != "answer" else ""),
        (names.TOOL_MODE, mode),
        (names.CONSTRAINT, constraint),
    )
    return span_shape(f"{names.CHAT} {model}".rstrip(), CLIENT, pairs, failed=bool(error))


@lru_cache(maxsize=256)
def _call_shape(tool: str, source: str, agent: str, code: str, failed: bool) -> bytes:  # noqa: FBT001
    pairs: Pairs = (
        (names.OPERATION, names.EXECUTE_TOOL),
        (names.TOOL_NAME, tool),
        (names.TOOL_TYPE, "extension" if source else "function"),
        (names.TOOL_SOURCE, source),
        (names.MCP_METHOD, "tools/call" if source.startswith("mcp:") else ""),
        (names.AGENT_NAME, agent),
        (names.ERROR_TYPE, code),
    )
    return span_shape(f"{names.EXECUTE_TOOL} {tool}", INTERNAL, pairs, failed=failed)


def _counted(counts: Counts) -> bytes:
    given, written, cached = counts
    return attributes(((names.INPUT_TOKENS, given), (names.OUTPUT_TOKENS, written), (names.CACHED_TOKENS, cached)))


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role, content = str(message.get("role")), message.get("content")
    if isinstance(content, list):  # of parts; files are left out
        content = "\n".join(str(each["text"]) for each in content if isinstance(each, dict) and "text" in each)
    text = content[:_MAX_CONTENT_CHARS] if isinstance(content, str) else ""
    if role == "tool":
        return {"role": role, "parts": [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}]}
    parts = [{"type": "text", "content": text}] if text else []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(_call(call.get("id"), function.get("name"), function.get("arguments")))
    return {"role": role, "parts": parts}


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}
