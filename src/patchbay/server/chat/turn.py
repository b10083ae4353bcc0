"""What the chat door is told, checked when it is set. Plain data; where the upstream is stands in ``ProxySettings``.

What a client is told of a turn: one completion of several rounds, whole or as a stream.

The text of all rounds is one text, with a blank line between those of two rounds; its client sees it as it comes. Where JSON was
asked for (``response_format``), only the last round's counts, since both together would be none. Pure: no I/O.

A chat completion in which the server carries out calls of its registry's tools: the one loop, and its events to the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.executor import Budget, Executor, ToolExecution
from patchbay.executor.limits import checked_count
from patchbay.hooks import HookScope
from patchbay.loop import (
    FinalEvent,
    IterationEndEvent,
    ReasoningEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    UserOutputEvent,
    turn,
)
from patchbay.models.error_bodies import error_body
from patchbay.models.options import TextOptions
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.models.wire import DONE, Envelope, encode, sse_event
from patchbay.server.auth import signed_path
from patchbay.server.chat.hidden_turns import HiddenTurnStore, RestoredHistory, hides
from patchbay.server.chat.model import ModelBackend, UpstreamModel
from patchbay.server.errors import JSON_TYPE
from patchbay.server.http import EVENT_STREAM
from patchbay.server.settings import MIB
from patchbay.tools.output import checked_kinds
from patchbay.tools.registry.registration import Snapshot
from patchbay.tools.results import excerpt
from patchbay.types import ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.server.upstream import ProxyRequest


@dataclass(frozen=True)
class ChatSettings:
    """How turns are run. Raises ConfigurationError for what cannot work.

    ``options`` is how tools reach the model, as in the proxy. A turn ends after ``max_iterations`` rounds, ``max_calls`` calls of
    the registry's tools or ``max_seconds`` (None: no limit). Sessions have the first two as well, and of calls their own limit
    where there is none here; nobody but their client waits for a turn, who may end it.

    ``attachments`` are the kinds ("image", "audio", "file") that the upstream's models take of what tools return.

    Between two requests of a conversation the server keeps what its client does not see: of at most ``max_kept`` answers,
    ``max_kept_size`` bytes, and for ``kept_for`` seconds since they were last asked about.
    """

    options: TextOptions = field(default_factory=TextOptions)
    max_iterations: int = 10
    max_calls: int | None = None
    max_seconds: float | None = None
    attachments: tuple[str, ...] = ()
    max_kept: int = 1000
    max_kept_size: int = 64 * MIB
    kept_for: float = 3600.0

    def __post_init__(self) -> None:
        if checked_count(self.max_iterations, "max_iterations") is None:
            raise ConfigurationError("max_iterations must be a number: a turn that nobody watches needs an end.")
        self.budget()
        checked_kinds(self.attachments)
        for name in ("max_kept", "max_kept_size", "kept_for"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(f"{name} must be 0 (keep nothing) or more.")

    def budget(self) -> Budget:
        """Return the budget of one turn."""
        return Budget(max_calls=self.max_calls, max_seconds=self.max_seconds)


SHOWN: Final = frozenset({"role", "content", "tool_calls", "reasoning_content"})
"""The fields of a message that every client is told of, also in a stream."""

EXCERPT: Final = 2000
"""How many characters of a call's arguments and of its result the operator is shown."""

_BETWEEN: Final = "\n\n"
_OWN_REASONS: Final = frozenset({"stop", "length", "content_filter", "tool_calls"})
_REASONING: Final = frozenset({"reasoning", "reasoning_content"})


class TurnText:
    """The text of several rounds. With ``only_last`` that of the last round alone, which is known when it is over."""

    def __init__(self, *, only_last: bool = False) -> None:
        self._only_last = only_last
        self._pieces: list[str] = []
        self._is_over = False

    def add(self, text: str) -> str:
        """Take a piece in; return what may be shown of it now."""
        if self._is_over:
            self._is_over = False
            if self._only_last:
                self._pieces.clear()
            elif self._pieces:
                text = _BETWEEN + text
        self._pieces.append(text)
        return "" if self._only_last else text

    def add_apart(self, text: str) -> str:
        """Take in what is not the model's, as a paragraph of its own; return what may be shown of it now."""
        self.round_over()
        shown = self.add(text) if text and not self._only_last else ""
        self.round_over()
        return shown

    def round_over(self) -> None:
        """Note that what follows is another round's."""
        self._is_over = True

    @property
    def unshown(self) -> str:
        """What ``add`` has kept back."""
        return self.text if self._only_last else ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)


class StreamEncoder:
    """The chunks of a stream, in the envelope of the first one that came from upstream."""

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._opened = False

    def delta(self, envelope: Envelope, delta: Mapping[str, Any], *, logprobs: Any = None) -> bytes:
        """A chunk; the first one says the role."""
        told = delta if self._opened else {"role": "assistant", **delta}
        self._opened = True
        return envelope.delta(0, told, logprobs=b"null" if logprobs is None else encode(logprobs))

    def end(
        self,
        envelope: Envelope,
        *,
        rest: str,
        pending: Sequence[ToolCall],
        finish_reason: str,
        usage: Mapping[str, Any] | None,
        report: Mapping[str, Any],
    ) -> bytes:
        """All that is left: ``rest`` of the text, the client's calls, why it ended, what was done, what it cost."""
        out = [self.delta(envelope, {"content": rest})] if rest or not (self._opened or pending) else []
        for index, call in enumerate(pending):
            out.append(self.delta(envelope, {"tool_calls": [{"index": index, **call.to_openai()}]}))
        out.append(envelope.finish(0, finish_reason, patchbay=report))
        if self._include_usage and usage is not None:
            out.append(envelope.usage(usage))
        return b"".join([*out, DONE])


def encode_completion(
    last: Mapping[str, Any],
    *,
    content: str,
    reasoning: str,
    pending: Sequence[ToolCall],
    finish_reason: str,
    usage: Mapping[str, Any] | None,
    report: Mapping[str, Any],
) -> bytes:
    """A completion: ``last``, the upstream's own of the last round, with what the turn came to."""
    choices = last.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    said = choice.get("message")
    message: dict[str, Any] = {
        key: value
        for key, value in (said.items() if isinstance(said, Mapping) else ())
        if key != "tool_calls" and key not in _REASONING
    }
    message |= {"role": "assistant", "content": content or (None if pending else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    if pending:
        message["tool_calls"] = [call.to_openai() for call in pending]
    answer: dict[str, Any] = {"id": "chatcmpl-patchbay", "created": 0, "model": "", **last, "object": "chat.completion"}
    answer["choices"] = [{"logprobs": None, **choice, "index": 0, "message": message, "finish_reason": finish_reason}]
    if usage is not None:
        answer["usage"] = usage
    return encode({**answer, "patchbay": report})


def wire_finish_reason(end: FinalEvent) -> str:
    """Return OpenAI's word for why a turn ended. A limit is "length": it ended before the answer did; so is none a hook ended."""
    if end.aborted is not None:
        return "content_filter"
    return end.finish_reason if end.finish_reason in _OWN_REASONS else "length"


def report_of(role: str, revision: int, end: FinalEvent, outputs: Sequence[UserOutputEvent]) -> dict[str, Any]:
    """Return what the answer's ``patchbay`` says: whose tools of which revision, which calls, and the limit that ended it.

    Where tools had something for the user that is there too, and where a hook ended the turn, which one and why.
    """
    report: dict[str, Any] = {"role": role, "revision": revision, "calls": [_call(each) for each in end.tool_executions]}
    if outputs:
        report["outputs"] = [_output(each) for each in outputs]
    if end.aborted is not None:
        report["aborted"] = {"by": end.aborted.hook, "point": end.aborted.point, "reason": end.aborted.reason}
    return report if end.finish_reason in _OWN_REASONS else {**report, "limit": end.finish_reason}


def sum_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what all rounds cost together, details too; None where none of them said."""
    if not usages:
        return None
    total = dict(usages[0])
    for usage in usages[1:]:
        total = _added(total, usage)
    return total


def _added(total: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(total)
    for key, value in usage.items():
        before = out.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            out[key] = _added(before, value)
        elif _is_number(value) and _is_number(before):
            out[key] = before + value
        elif value is not None:
            out[key] = value
    return out


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _output(shown: UserOutputEvent) -> dict[str, Any]:
    return {
        "call_id": shown.tool_call.id,
        "text": excerpt(shown.text, EXCERPT),
        "media": [{"ref": ref, "path": signed_path(ref)} for ref in shown.media],
        "handled": shown.handled,
    }


def _call(execution: ToolExecution) -> dict[str, Any]:
    return {
        "id": execution.call.id,
        "name": execution.call.name,
        "arguments": excerpt(execution.call.raw_arguments, EXCERPT),
        "content": excerpt(execution.content, EXCERPT),
        "is_error": execution.is_error,
        "code": execution.result.code,
        "seconds": round(execution.seconds, 6),
    }


@dataclass(frozen=True)
class RoleTools:
    """A role's tools at one moment, as an executor carries them out and a model is told of them."""

    snapshot: Snapshot
    executor: Executor
    offer: ToolEncoder


@dataclass(frozen=True)
class ChatTurnRequest:
    """What a client asked for.

    ``history`` is its conversation as the model is to see it. ``external`` are the client's own tools, ``written`` the same as
    it wrote them, by name. ``parameters`` is all else of its body. ``wants_json``: its answer is to be JSON. ``session`` and
    ``sender`` are what it says of itself, for hooks and approvals.
    """

    history: RestoredHistory
    external: tuple[ToolSpec, ...]
    written: Mapping[str, Mapping[str, Any]]
    tool_choice: Any
    parameters: Mapping[str, Any]
    include_usage: bool
    wants_json: bool
    session: str = ""
    sender: str = ""


class ToolChatTurn:
    """One such completion; ``run`` carries it out. ``has_run``: a tool was called, so asking again does things again."""

    def __init__(
        self,
        asked: ChatTurnRequest,
        tools: RoleTools,
        way: ModelBackend,
        stretches: HiddenTurnStore,
        settings: ChatSettings,
        *,
        streaming: bool,
    ) -> None:
        self.streaming = streaming
        self.has_run = False
        self._asked = asked
        self._tools = tools
        self._way = way
        self._stretches = stretches
        self._settings = settings
        self._content = TurnText(only_last=asked.wants_json)
        self._reasoning = TurnText()
        self._outputs: list[UserOutputEvent] = []
        self._stream = StreamEncoder(include_usage=asked.include_usage)

    def error_event(self, error: PatchbayError) -> bytes:
        """Return the event that tells a stream's reader of a failure."""
        return sse_event(encode(error_body(error)))

    async def run(self, request: ProxyRequest) -> None:
        """Ask the model and carry out its calls until it answers, and tell the client. Raises PatchbayError."""
        asked = self._asked
        if self.streaming:
            request.watch.beat(request.reply.heartbeat)
        model = UpstreamModel(request, self._way, self._tools.offer, asked.written, stream=self.streaming)
        results = asked.history.results
        executing = self._tools.executor.begin(
            budget=self._settings.budget(),
            attachments=self._settings.attachments,
            results=results,
            offer_reader=results.size > 0,
            scope=self._scope(request),
        )
        events = turn(
            model,
            executing,
            asked.history.messages,
            tool_choice=asked.tool_choice,
            parameters=asked.parameters,
            max_iterations=self._settings.max_iterations,
            stream=self.streaming,
            external=asked.external,
            without=(ToolResultEvent,),
        )
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TextEvent):
                    await self._tell(request, model, "content", self._content.add(event.delta))
                elif isinstance(event, ReasoningEvent):
                    await self._tell(request, model, "reasoning_content", self._reasoning.add(event.delta))
                elif isinstance(event, ToolCallEvent):
                    self.has_run = True
                elif isinstance(event, UserOutputEvent):
                    self._outputs.append(event)
                    await self._tell(request, model, "content", self._content.add_apart(event.text))
                elif isinstance(event, IterationEndEvent):
                    self._content.round_over()
                    self._reasoning.round_over()
                elif isinstance(event, FinalEvent):
                    await self._end(request, model, event)

    async def _tell(self, request: ProxyRequest, model: UpstreamModel, field: str, text: str) -> None:
        """Show a piece of text to who reads a stream."""
        if not self.streaming or not text:
            return
        logprobs = model.logprobs if field == "content" else None
        envelope = self._envelope(model)
        await request.watch.wrote()
        if not request.reply.started:
            await request.reply.start(200, EVENT_STREAM + model.headers)
        await request.reply.write(self._stream.delta(envelope, {field: text}, logprobs=logprobs))

    async def _end(self, request: ProxyRequest, model: UpstreamModel, end: FinalEvent) -> None:
        if end.aborted is not None and not end.aborted.hard:
            raise end.aborted
        pending = self._handed_out(end) if end.pending else ()
        if pending and self._asked.wants_json:  # clients parse all content as JSON
            self._content = TurnText()
        usage = sum_usage(model.usages)
        snapshot = self._tools.snapshot
        report = report_of(snapshot.role, snapshot.revision, end, self._outputs)
        reason = wire_finish_reason(end)
        if end.aborted is not None:  # a hard one: it is as if nothing had been said
            self._content, self._reasoning = TurnText(), TurnText()
        reply, capture = request.reply, request.capture()
        if self.streaming:
            out = self._stream.end(
                self._envelope(model),
                rest=self._content.unshown,
                pending=pending,
                finish_reason=reason,
                usage=usage,
                report=report,
            )
        else:
            out = encode_completion(
                model.document,
                content=self._content.text,
                reasoning=self._reasoning.text,
                pending=pending,
                finish_reason=reason,
                usage=usage,
                report=report,
            )
        await request.watch.wrote()
        if not self.streaming:
            await reply.whole(200, [JSON_TYPE, *model.headers], out)
        else:
            if not reply.started:
                await reply.start(200, EVENT_STREAM + model.headers)
            await reply.finish(out)
        if request.journal is not None and capture is not None:
            capture.add(out)
            request.journal.record("response", request.id, status=reply.status, stream=self.streaming, **capture.fields())

    def _scope(self, request: ProxyRequest) -> HookScope:
        asked, role = self._asked, self._tools.snapshot.role
        inbound = {"channel": "chat", "chat_id": asked.session, "sender_id": asked.sender}
        model = asked.parameters.get("model")
        return HookScope(
            role,
            request.id,
            session_key=asked.session,
            model=model if isinstance(model, str) else "",
            context={"inbound": inbound, "scope": {"role": role}},
        )

    def _handed_out(self, end: FinalEvent) -> tuple[ToolCall, ...]:
        """The calls that the client is to answer; what it is not told of the turn is kept under their ids."""
        history = self._asked.history
        unseen = end.messages[len(history.messages) :]
        return self._stretches.keep(unseen, end.pending, history.results) if hides(unseen, SHOWN) else end.pending

    def _envelope(self, model: UpstreamModel) -> Envelope:
        return model.envelope or Envelope(id=None, created=None, model=self._asked.parameters.get("model"))
