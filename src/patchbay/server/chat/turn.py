"""A chat completion that is a turn: the server runs calls of its registry's tools, and the client gets one completion.

The text of all rounds is one text, with a blank line between rounds, streamed as it comes. With a JSON ``response_format`` only
the last round's text counts, since several would not be JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from patchbay.errors import PatchbayError
from patchbay.executor import Executor, ToolExecution
from patchbay.formats.events import CallArguments, CallEnd, CallStart, ReasoningDelta, TextDelta
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
from patchbay.models.encoder import AnswerEncoder, WholeEncoder
from patchbay.models.parts import NO_LOGPROBS, AnswerHead, CallExtra
from patchbay.models.policy import sum_usage
from patchbay.models.tool_encoder import ToolEncoder
from patchbay.server.auth import signed_path
from patchbay.server.chat.hidden_turns import HiddenTurnStore, RestoredHistory, hides
from patchbay.server.chat.model import ModelBackend, TurnModel, UpstreamModel
from patchbay.server.errors import JSON_TYPE
from patchbay.server.http import EVENT_STREAM
from patchbay.server.settings import ChatSettings
from patchbay.tools.registry.registration import Snapshot
from patchbay.tools.results import excerpt
from patchbay.types import ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.server.upstream import ProxyRequest


VISIBLE_FIELDS: Final = frozenset({"role", "content", "tool_calls", "reasoning_content"})
"""The fields of a message that clients see, also in a stream."""

EXCERPT_CHARS: Final = 2000
"""Maximum characters of arguments and results in the report."""

_ROUND_SEPARATOR: Final = "\n\n"
_OWN_REASONS: Final = frozenset({"stop", "length", "content_filter", "tool_calls"})


class TurnText:
    """The text of several rounds. ``held``: nothing may be sent before the end. ``only_last``: that of the last round counts."""

    def __init__(self, *, held: bool = False, only_last: bool = False) -> None:
        self._held = held or only_last
        self._only_last = only_last
        self._pieces: list[str] = []
        self._is_over = False

    def add(self, text: str) -> str:
        """Append a piece; return the part that may be sent now."""
        if self._is_over:
            self._is_over = False
            if self._only_last:
                self._pieces.clear()
            elif self._pieces:
                text = _ROUND_SEPARATOR + text
        self._pieces.append(text)
        return "" if self._held else text

    def add_apart(self, text: str) -> str:
        """Append text that is not the model's, as a separate paragraph; return the part that may be sent now."""
        self.round_over()
        visible = self.add(text) if text and not self._only_last else ""
        self.round_over()
        return visible

    def round_over(self) -> None:
        """Start another round."""
        self._is_over = True

    @property
    def unsent(self) -> str:
        """Text that ``add`` has not returned."""
        return "".join(self._pieces) if self._held else ""


def wire_finish_reason(end: FinalEvent) -> str:
    """Return OpenAI's finish reason of a turn: "length" for one that a limit ended, "content_filter" for a hook."""
    if end.aborted is not None:
        return "content_filter"
    return end.finish_reason if end.finish_reason in _OWN_REASONS else "length"


def report_of(role: str, revision: int, end: FinalEvent, outputs: Sequence[UserOutputEvent]) -> dict[str, Any]:
    """Return the ``patchbay`` field: role, revision, calls, and the limit that ended the turn.

    Outputs of tools for the user are included, and the hook that aborted the turn.
    """
    report: dict[str, Any] = {"role": role, "revision": revision, "calls": [_call(each) for each in end.tool_executions]}
    if outputs:
        report["outputs"] = [_output(each) for each in outputs]
    if end.aborted is not None:
        report["aborted"] = {"by": end.aborted.hook, "point": end.aborted.point, "reason": end.aborted.reason}
    return report if end.finish_reason in _OWN_REASONS else {**report, "limit": end.finish_reason}


def _output(event: UserOutputEvent) -> dict[str, Any]:
    return {
        "call_id": event.tool_call.id,
        "text": excerpt(event.text, EXCERPT_CHARS),
        "media": [{"ref": ref, "path": signed_path(ref)} for ref in event.media],
        "handled": event.handled,
    }


def _call(execution: ToolExecution) -> dict[str, Any]:
    return {
        "id": execution.call.id,
        "name": execution.call.name,
        "arguments": excerpt(execution.call.raw_arguments, EXCERPT_CHARS),
        "content": excerpt(execution.content, EXCERPT_CHARS),
        "is_error": execution.is_error,
        "code": execution.result.code,
        "seconds": round(execution.seconds, 6),
    }


@dataclass(frozen=True)
class RoleTools:
    """A role's tools of one snapshot: the executor, and the encoder for the model."""

    snapshot: Snapshot
    executor: Executor
    encoder: ToolEncoder


@dataclass(eq=False)
class ToolChatTurn:
    """One turn. ``has_run``: a tool was called, so a retry would run it again.

    ``history`` is the client's conversation as the model sees it, ``external`` are its own tools, ``written`` the same as it
    wrote them, by name. ``parameters`` is the rest of the body. ``wants_json``: the answer must be JSON. ``session`` and
    ``sender`` are for hooks and approvals. ``found`` are the tools that were found in the session. ``encoder`` writes the answer.
    """

    tools: RoleTools
    backend: ModelBackend
    hidden_turns: HiddenTurnStore
    settings: ChatSettings
    encoder: AnswerEncoder[bytes]
    history: RestoredHistory
    external: tuple[ToolSpec, ...]
    written: Mapping[str, Mapping[str, Any]]
    tool_choice: Any
    parameters: Mapping[str, Any]
    client_streams: bool
    include_usage: bool
    wants_json: bool
    session: str
    sender: str
    found: dict[str, None] | None
    has_run: bool = False

    def __post_init__(self) -> None:
        self._has_written = False
        self._out: AnswerEncoder[bytes] = self.encoder if self.client_streams else WholeEncoder(self.encoder)
        self._content = TurnText(held=not self.client_streams, only_last=self.wants_json)
        self._reasoning = TurnText(held=not self.client_streams)
        self._outputs: list[UserOutputEvent] = []

    def error_event(self, error: PatchbayError) -> bytes:
        """Return the event for an error within a stream."""
        return self.encoder.error(error)

    @property
    def model(self) -> str:
        """The name of the model that was asked for."""
        name = self.parameters.get("model")
        return name if isinstance(name, str) else ""

    @property
    def role(self) -> str:
        """The role whose tools it has."""
        return self.tools.snapshot.role

    async def run_turn(self, request: ProxyRequest) -> None:
        """Run the loop until the model's final answer, and send it to the client. Raises PatchbayError."""
        if self.client_streams:
            request.watch.beat(request.reply.heartbeat)
        model = self._make_model(request)
        results = self.history.results
        executing = self.tools.executor.begin_run(
            budget=self.settings.budget(),
            attachments=self.settings.attachments,
            results=results,
            offer_reader=results.size > 0,
            scope=self._scope(request),
            reserved=self.written,
            found=self.found,
            max_external_repeats=self.settings.max_identical_client_calls or None,
        )
        executing.repeats.add_history(self.history.messages)
        events = turn(
            model,
            executing,
            self.history.messages,
            tool_choice=self.tool_choice,
            parameters=self.parameters,
            max_iterations=self.settings.max_iterations,
            stream=self.client_streams,
            external=self.external,
            without=(ToolResultEvent,),
        )
        async with aclosing(events):
            async for event in events:
                if isinstance(event, TextEvent):
                    await self._write(request, model, TextDelta(self._content.add(event.delta)))
                elif isinstance(event, ReasoningEvent):
                    await self._write(request, model, ReasoningDelta(self._reasoning.add(event.delta)))
                elif isinstance(event, ToolCallEvent):
                    self.has_run = True
                elif isinstance(event, UserOutputEvent):
                    self._outputs.append(event)
                    await self._write(request, model, TextDelta(self._content.add_apart(event.text)))
                elif isinstance(event, IterationEndEvent):
                    self._content.round_over()
                    self._reasoning.round_over()
                elif isinstance(event, FinalEvent):
                    await self._end(request, model, event, executing.refused)

    def _make_model(self, request: ProxyRequest) -> TurnModel:
        return UpstreamModel(
            request,
            self.backend,
            self.tools.encoder,
            self.written,
            stream=self.client_streams,
            searching=self.tools.executor.catalog is not None,
        )

    def _report(self, end: FinalEvent) -> dict[str, Any]:
        """Return the ``patchbay`` field of the answer."""
        snapshot = self.tools.snapshot
        return report_of(snapshot.role, snapshot.revision, end, self._outputs)

    async def _write(self, request: ProxyRequest, model: TurnModel, part: TextDelta | ReasoningDelta) -> None:
        """Write a piece of text to a streaming client."""
        if not part.text:
            return
        self._has_written = True
        self._out.begin_answer(self._head(model))
        piece = self._out.part(0, part, model.logprobs if isinstance(part, TextDelta) else NO_LOGPROBS)
        await request.watch.before_write()
        if not request.reply.started:
            await request.reply.send_head(200, EVENT_STREAM + model.headers)
        await request.reply.write(piece)

    async def _end(self, request: ProxyRequest, model: TurnModel, end: FinalEvent, refused: Collection[str]) -> None:
        if end.aborted is not None and not end.aborted.hard:
            raise end.aborted
        pending = await self._handed_out(end) if end.pending else ()
        if end.aborted is not None:  # a hard one drops all text
            self._content, self._reasoning = TurnText(), TurnText()
        elif pending and self.wants_json:  # clients parse all content as JSON
            self._content = TurnText()
        report = self._report(end)
        if request.turn is not None and (limit := report.get("limit")) and end.aborted is None:
            names = sorted({each.call.name for each in end.tool_executions if each.call.id in refused})
            repeated = f" Calls of {', '.join(names)} were not handed out: they gave the same result again." if names else ""
            request.turn.error = f"{limit}: The turn reached this limit before the model had answered.{repeated}"
        reply, capture = request.reply, request.capture()
        out = self._encode_end(model, pending, wire_finish_reason(end), report)
        await request.watch.before_write()
        if not self.client_streams:
            await reply.whole(200, [JSON_TYPE, *model.headers], out)
        else:
            if not reply.started:
                await reply.send_head(200, EVENT_STREAM + model.headers)
            await reply.finish(out)
        if capture is not None:
            capture.add(out)
            request.log("response", status=reply.status, stream=self.client_streams, **capture.fields())

    def _scope(self, request: ProxyRequest) -> HookScope:
        role = self.tools.snapshot.role
        inbound = {"channel": "chat", "chat_id": self.session, "sender_id": self.sender}
        return HookScope(
            role,
            request.id,
            session_key=self.session,
            model=self.model,
            context={"inbound": inbound, "scope": {"role": role}},
        )

    async def _handed_out(self, end: FinalEvent) -> tuple[ToolCall, ...]:
        """Return the calls for the client; what it does not see of the turn is stored under their ids."""
        history = self.history
        unseen = end.messages[len(history.messages) :]
        if not hides(unseen, VISIBLE_FIELDS):
            return end.pending
        return await self.hidden_turns.keep(unseen, end.pending, history.results)

    def _head(self, model: TurnModel) -> AnswerHead:
        """Return the head of the client's answer: the first round's in a stream, else the last one's."""
        answer = model.first if self.client_streams else model.last
        return (
            msgspec.structs.replace(answer.head, body=None)
            if answer is not None and answer.choices
            else AnswerHead(model=self.parameters.get("model"))
        )

    def _encode_end(self, model: TurnModel, pending: Sequence[ToolCall], reason: str, report: Mapping[str, Any]) -> bytes:
        """Encode the end of an answer: the rest of the text, the client's calls, finish reason, report and usage."""
        encoder, text, reasoning = self._out, self._content.unsent, self._reasoning.unsent
        encoder.begin_answer(self._head(model))
        out = [encoder.part(0, ReasoningDelta(reasoning))] if reasoning else []
        if text or not (self._has_written or pending):
            out.append(encoder.part(0, TextDelta(text)))
        for index, call in enumerate(pending):
            out.append(encoder.part(0, CallStart(index, call.id, call.name)))
            if call.extra:
                out.append(encoder.part(0, CallExtra(index, call.extra)))
            out.append(encoder.part(0, CallArguments(index, call.raw_arguments)))
            out.append(encoder.part(0, CallEnd(index, call)))
        out.append(encoder.finish(0, reason, patchbay=report))
        usage = sum_usage(model.usages)
        if usage is not None and (self.include_usage or not self.client_streams):
            out.append(encoder.usage(usage))
        return b"".join([*out, encoder.end_answer()])
