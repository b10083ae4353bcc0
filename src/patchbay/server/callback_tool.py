"""Tools of other processes: calls are POSTed to the URL that a tool was registered with.

Responses are untrusted: they are read up to a size, redirects are not followed, proxies of the environment are not used, and a
response that is cut off is an error.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from patchbay._trace import trace_headers
from patchbay.errors import ConfigurationError, ToolArgumentsError, ToolError, ToolFailed
from patchbay.media.content import drop_cut_base64
from patchbay.schema.arguments import UnreadableArgumentsError, read_arguments
from patchbay.server.callbacks import (
    CallbackEndpoint,
    CallbackHealth,
    CallbackUrl,
    CallbackUrlError,
    check_port,
    origin_of,
    read_callback_url,
)
from patchbay.server.http_client import HttpClient, Response
from patchbay.server.origin import (
    ClientError,
    ConnectError,
    ConnectTimeoutError,
    DisconnectedError,
    IncompleteResponse,
    RemoteProtocolError,
)
from patchbay.server.progress_lines import ACCEPT, MAX_PROGRESS_BYTES, NDJSON, ProgressReader, TooMuchProgressError
from patchbay.server.settings import ToolsSettings
from patchbay.tools import Progress, Tool, Validation, render_result
from patchbay.tools.context import ToolContext
from patchbay.tools.envelope import MOST_CHARS, MOST_IMAGES, ReportedError, image_chars, unwrap_tool_response
from patchbay.tools.registry import Registration
from patchbay.tools.tool import ForeignTool

SIGNATURE: Final = "X-Patchbay-Signature"
"""The header that authenticates a call: ``sha256=`` and the HMAC of the body with the registration's secret."""

IDEMPOTENCY: Final = "Idempotency-Key"
"""The header that is the same when a call is repeated."""

GRACE: Final = "X-Patchbay-Grace"
"""The header with the seconds for which a call continues after a disconnect, so that it may be repeated under its key."""

GRACE_SECONDS: Final = 60

MAX_CLIENTS: Final = 1000
"""Maximum origins whose connections are kept."""

_logger = logging.getLogger(__name__)

EXTRA_IMAGE_BYTES: Final = MOST_IMAGES * MOST_CHARS
"""Extra bytes for a response with images, which are not text for the model."""

_MAX_QUOTED_CHARS: Final = 200
_MAX_REPORTED: Final = 1000
_JSON: Final = re.compile(r"application/([\w.!#$&^+-]+\+)?json")
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_HEADERS: Final = (
    (b"Content-Type", b"application/json"),
    (b"Accept", ACCEPT.encode()),
    (b"Accept-Encoding", b"identity"),
    (b"User-Agent", b"patchbay"),
)


class CallbackError(ToolError):
    """A callback did not respond as it should. ``ran`` is whether the tool ran: "no" or "unknown"."""

    code = "callback_failed"

    def __init__(self, message: str, *, tool_name: str = "", ran: Literal["no", "unknown"] = "unknown") -> None:
        super().__init__(message, tool_name=tool_name)
        self.ran = ran

    @property
    def for_model(self) -> str:
        """The error as the JSON object in which callbacks themselves report errors."""
        return render_result({"error": f"{self}; the tool did not run" if self.ran == "no" else f"{self}"})


class UnusableSchemaError(ToolFailed):
    """Arguments cannot be validated, since the tool's own schema is unusable. The tool did not run."""

    code = "unusable_schema"


class CallbackDispatcher:
    """Connections to callbacks, one client per origin, and the ``health`` of the callbacks. For one event loop at a time."""

    def __init__(self, settings: ToolsSettings) -> None:
        self.settings = settings
        self.health = CallbackHealth(settings)
        self._clients: dict[str, HttpClient] = {}  # the least recently used one first
        # Once per tool and problem: hosts register their tools again and again.
        self._report = lru_cache(maxsize=_MAX_REPORTED)(_log_problem)

    def tool(self, registration: Registration) -> Tool:
        """Create the tool of a registration. Raises ConfigurationError for a callback_url that is not allowed."""
        tool = CallbackTool(registration, self)
        if tool.problem is not None:
            self._report(tool.name, tool.problem)
        return tool

    def combine(self, tools: Sequence[Tool]) -> Tool:
        """Return the tool of replicas, each with a tool of its own; the same for the same ones."""
        replicas = tuple(each for each in tools if isinstance(each, CallbackTool))
        first = replicas[0]
        if first.combined is None or first.combined.replicas != replicas:
            first.combined = ReplicatedTool(replicas, self.health)
        return first.combined

    async def post(
        self,
        callback: CallbackUrl,
        endpoint: CallbackEndpoint,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        *,
        on_progress: Callable[[Progress], object],
    ) -> tuple[Response, bytes, bool]:
        """Send a call; return the response, its body up to the limit, and whether that is the whole body.

        For a response in lines the body is the last line; progress goes to ``on_progress`` as it comes. Raises ClientError,
        TooMuchProgressError.
        """
        origin = callback.origin
        client = self._clients.pop(origin, None)
        if client is None:
            client = HttpClient(origin_of(callback, self.health.hosts), connect_timeout=self.settings.connect_timeout)
        self._clients[origin] = client
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]  # its connections end once they are idle
        try:
            # Once: a callback that died may have run the call, and only the caller may repeat it.
            answer = await client.request(b"POST", callback.target, headers, body, once=True)
            try:
                most = self.settings.max_result_size + EXTRA_IMAGE_BYTES
                if answer.status < 300 and answer.content_type == NDJSON and not answer.coding:
                    read, whole = await _read_lines(answer, most, on_progress)
                else:
                    read = await answer.read_up_to(most)
                    whole = len(read) <= most
            finally:
                answer.close()
        except (ConnectError, ConnectTimeoutError):
            self.health.failed(endpoint)
            raise
        self.health.succeeded(endpoint)
        return answer, read, whole

    async def close(self) -> None:
        """Close all connections."""
        while self._clients:
            await self._clients.popitem()[1].close()


class CallbackTool(ForeignTool):
    """A tool served by another process, at a URL on this machine or an allowed one.

    A call is one POST of ``{"name", "arguments", "call_id", "raw_arguments"}``, within the registration's timeout. What the model
    wrote is passed on even if it is not a JSON object (as ``{"_raw": text}`` or ``{"value": ...}``): the callback decides. With
    ``strict_arguments`` only arguments that match the schema are passed on. Raises ConfigurationError for a URL that is not
    allowed.
    """

    def __init__(self, registration: Registration, dispatcher: CallbackDispatcher) -> None:
        super().__init__(
            registration.name,
            registration.description,
            parameters=registration.parameters,
            timeout=registration.timeout_seconds,
            annotations=registration.annotations,
            title=registration.metadata.get("title") or "",
            output_schema=registration.metadata.get("output_schema"),
        )
        self.source = registration.source or "external"  # "" is this program's own
        self.endpoint = registration.callback_url or ""
        try:
            self._callback = read_callback_url(registration.callback_url or "", dispatcher.health.hosts)
            # Of a tool that was stored, too: fewer ports may be allowed by now.
            check_port(self._callback, own=(), allowed=dispatcher.settings.callback_ports)
        except CallbackUrlError as error:
            raise ConfigurationError(f"Tool {registration.name!r}: {error}.") from None
        self._dispatcher = dispatcher
        self.instance = registration.instance
        self.combined: ReplicatedTool | None = None
        """The tool of this replica and the others."""
        self.running = 0
        """Calls under way."""
        self.callback_endpoint = CallbackEndpoint(registration.source, registration.origin or self._callback.origin)
        self._secret = registration.secret.encode("utf-8", "surrogatepass") if registration.secret else None

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:
        """Parse what the model wrote.

        With ``strict_arguments`` raises ToolArgumentsError for arguments that do not match the schema, and UnusableSchemaError.
        """
        if self._dispatcher.settings.strict_arguments:
            self._check_schema()
            return super().validate(raw_arguments, validation)
        try:
            return read_arguments(raw_arguments)
        except UnreadableArgumentsError:
            return _wrap_arguments(raw_arguments)

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Call back and return the output. Raises CallbackError, and ReportedError where the response reports an error."""
        call = {
            "name": self.name,
            "arguments": arguments,
            "call_id": context.call_id,
            "raw_arguments": context.raw_arguments,
        }
        body = json.dumps(call, separators=(",", ":")).encode()
        headers = [*_HEADERS, (IDEMPOTENCY.encode(), context.idempotency_key.encode())]
        if context.agent_scope.idempotency_key:  # the caller's own, by which it can ask for the result again
            headers.append((GRACE.encode(), b"%d" % GRACE_SECONDS))
        headers += [(name.encode(), value.encode()) for name, value in trace_headers().items()]
        if self._secret is not None:
            headers.append((SIGNATURE.encode(), signature_of(body, self._secret).encode()))
        self.running += 1
        try:
            answer, read, whole = await self._dispatcher.post(
                self._callback,
                self.callback_endpoint,
                headers,
                body,
                on_progress=lambda each: context.progress(each.message, fraction=each.fraction, data=each.data),
            )
        except ClientError as error:
            raise self._failure(error) from error
        except TooMuchProgressError:
            message = f"remote tool callback sent more than {MAX_PROGRESS_BYTES} bytes of progress; the tool may have run"
            raise self._error(message) from None
        finally:
            self.running -= 1
        return self._value(answer, read, whole=whole)

    def _check_schema(self) -> None:
        """Raise UnusableSchemaError for a schema that no arguments match: the model could not correct the call."""
        problem = self.problem
        if problem is None:
            try:
                self.check()
            except ConfigurationError as error:
                problem = str(error)
        if problem is not None:
            raise UnusableSchemaError(
                f"the tool {self.name!r} did not run, since its own schema cannot be used: {problem}", tool_name=self.name
            )

    def _value(self, answer: Response, body: bytes, *, whole: bool) -> Any:
        """Return the output of a response, or raise its error."""
        status = answer.status
        if status >= 400:
            raise self._error(f"remote tool callback returned HTTP {status}{_quoted(body)}")
        if status >= 300:
            raise self._error(f"remote tool callback redirected (HTTP {status}), which is not followed")
        if answer.coding:
            raise self._error("remote tool callback answered in a compressed form, which it was not asked for")
        if status in (204, 205):
            return ""
        kind, limit = answer.content_type, self._dispatcher.settings.max_result_size
        if not _may_be_text(kind, body, whole=whole):
            raise self._error(f"remote tool callback answered {kind}, which is not text")
        if not whole or (len(body) > limit and b'"images"' not in body):
            return _cut(body, limit)
        if kind == NDJSON and not body:
            raise self._error("remote tool callback's answer ended before its result; the tool may have run")
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            if kind == NDJSON or _JSON.fullmatch(kind):
                raise self._error(f"remote tool callback answered JSON that cannot be read{_quoted(body)}") from None
            if kind in _PAGES:
                raise self._error(f"remote tool callback answered a web page{_quoted(body)}") from None
            return body.decode("utf-8", "replace") if len(body) <= limit else _cut(body, limit)
        is_envelope = isinstance(value, Mapping) and ("output" in value or "is_error" in value)
        if len(body) > limit and len(body) - (image_chars(value.get("images")) if is_envelope else 0) > limit:
            return _cut(body, limit)
        return unwrap_tool_response(value, tool_name=self.name) if is_envelope else value

    def _failure(self, error: ClientError) -> CallbackError:
        if isinstance(error, ConnectError | ConnectTimeoutError):
            return self._error(f"remote tool callback HTTP failure: no connection: {error}", ran="no")
        if isinstance(error, DisconnectedError):
            what = "the connection ended before the answer"
        elif isinstance(error, IncompleteResponse):
            what = "the connection ended in the middle of the answer"
        elif isinstance(error, RemoteProtocolError):
            what = f"what came back is not HTTP: {error}"
        else:
            what = str(error)
        return self._error(f"remote tool callback HTTP failure: {what}; the tool may have run")

    def _error(self, message: str, *, ran: Literal["no", "unknown"] = "unknown") -> CallbackError:
        return CallbackError(message, tool_name=self.name, ran=ran)


class ReplicatedTool(ForeignTool):
    """A tool with several callbacks, which are declared alike.

    A call goes to the one with the fewest calls under way of those that can be reached, and to another one where it did not run.
    A call with a key of its caller goes to the same one while that can be reached, which knows what it has answered.
    """

    def __init__(self, replicas: Sequence[CallbackTool], health: CallbackHealth) -> None:
        first = replicas[0]
        super().__init__(
            first.name,
            first.description,
            parameters=first.parameters,
            timeout=first.timeout,
            annotations=first.annotations,
            title=first.title,
            output_schema=first.output_schema,
        )
        self.replicas = replicas
        self.source = first.source
        self.endpoint = " ".join(sorted({each.endpoint for each in replicas}))  # a person who allowed it may not know another
        self.validate = first.validate  # type: ignore[method-assign]
        self._health = health
        self._last_used = dict.fromkeys(replicas, 0)
        self._calls = 0

    @cached_property
    def problem(self) -> str | None:
        """Why models cannot be offered the tool; None if they can."""
        return self.replicas[0].problem

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        """Run the call at one of the callbacks. Raises as CallbackTool."""
        failure: CallbackError | ReportedError | None = None
        for replica in self._candidates(context.agent_scope.idempotency_key):
            self._calls += 1
            self._last_used[replica] = self._calls
            try:
                return await replica.run(arguments, context)
            except (CallbackError, ReportedError) as error:
                if error.ran != "no" or error.code == ToolArgumentsError.code:
                    raise
                failure = error
        assert failure is not None
        raise failure

    def _candidates(self, key: str) -> list[CallbackTool]:
        """Return the callbacks in the order in which a call tries them."""

        def is_failing(replica: CallbackTool) -> bool:
            return self._health.is_failing(replica.callback_endpoint)

        if key:
            return [min(self.replicas, key=lambda each: (is_failing(each), _digest(key, each.instance)))]
        return sorted(self.replicas, key=lambda each: (is_failing(each), each.running, self._last_used[each]))


def _digest(*texts: str) -> bytes:
    return hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).digest()


def _log_problem(name: str, problem: str) -> None:
    _logger.warning("The tool %r is not offered to models: %s", name, problem)


def signature_of(body: bytes, secret: bytes) -> str:
    """Return the value of the SIGNATURE header for a body."""
    return f"sha256={hmac.new(secret, body, hashlib.sha256).hexdigest()}"


async def _read_lines(answer: Response, limit: int, on_progress: Callable[[Progress], object]) -> tuple[bytes, bool]:
    """Return at most ``limit`` bytes of the last line of a response, and whether that is the whole line."""
    lines = ProgressReader(limit)
    while piece := await answer.read():
        for progress in lines.feed(piece):
            on_progress(progress)
        if lines.is_cut:
            break
    return lines.close()


def _may_be_text(kind: str, body: bytes, *, whole: bool) -> bool:
    """Return whether a body can be shown to a model: declared text always can, also if it is not valid."""
    if not kind or kind.startswith("text/") or _JSON.fullmatch(kind) or kind == NDJSON:
        return True
    try:
        getincrementaldecoder("utf-8")().decode(body, final=whole)
    except UnicodeDecodeError:
        return False
    return True


def _cut(body: bytes, limit: int) -> str:
    # Shown as text and not parsed as an envelope: the part that was cut off is unknown.
    text = drop_cut_base64(body[:limit].decode("utf-8", "replace"))
    return f"{text}\n[... cut here: the callback's answer is larger than {limit} bytes ...]"


def _quoted(body: bytes) -> str:
    text = body[: 4 * _MAX_QUOTED_CHARS].decode("utf-8", "replace")[:_MAX_QUOTED_CHARS]
    return f": {text}" if text.strip() else ""


def _wrap_arguments(raw_arguments: str) -> dict[str, Any]:
    try:
        value = json.loads(raw_arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return {"_raw": raw_arguments}
    return {"_raw": raw_arguments} if isinstance(value, dict) else {"value": value}


def _refuse(text: str) -> Any:
    raise ValueError(text)
