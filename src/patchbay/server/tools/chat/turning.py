"""A chat completion in which the server carries out calls of its registry's tools: the one loop, and its events to the client."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchbay.errors import PatchbayError
from patchbay.executor import Executor
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
from patchbay.models.faults import error_body
from patchbay.models.offer import Offer
from patchbay.models.wire import Envelope, encode
from patchbay.models.wire import event as sse_event
from patchbay.server.answers import JSON_TYPE
from patchbay.server.reply import EVENT_STREAM
from patchbay.server.tools.chat.answer import SHOWN, Said, StreamedAnswer, report_of, summed, told_reason, whole_answer
from patchbay.server.tools.chat.model import UpstreamModel, Way
from patchbay.server.tools.chat.settings import ChatSettings
from patchbay.server.tools.chat.stretches import Restored, Stretches, hides
from patchbay.tools.registry.snapshot import Snapshot
from patchbay.types import ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.server.request import Request


@dataclass(frozen=True)
class RoleTools:
    """A role's tools at one moment, as an executor carries them out and a model is told of them."""

    snapshot: Snapshot
    executor: Executor
    offer: Offer


@dataclass(frozen=True)
class Asked:
    """What a client asked for.

    ``history`` is its conversation as the model is to see it. ``external`` are the client's own tools, ``written`` the same as
    it wrote them, by name. ``parameters`` is all else of its body. ``wants_json``: its answer is to be JSON. ``session`` and
    ``sender`` are what it says of itself, for hooks and approvals.
    """

    history: Restored
    external: tuple[ToolSpec, ...]
    written: Mapping[str, Mapping[str, Any]]
    tool_choice: Any
    parameters: Mapping[str, Any]
    include_usage: bool
    wants_json: bool
    session: str = ""
    sender: str = ""


class Turn:
    """One such completion; ``run`` carries it out. ``has_run``: a tool was called, so asking again does things again."""

    def __init__(
        self, asked: Asked, tools: RoleTools, way: Way, stretches: Stretches, settings: ChatSettings, *, streaming: bool
    ) -> None:
        self.streaming = streaming
        self.has_run = False
        self._asked = asked
        self._tools = tools
        self._way = way
        self._stretches = stretches
        self._settings = settings
        self._content = Said(only_last=asked.wants_json)
        self._reasoning = Said()
        self._outputs: list[UserOutputEvent] = []
        self._stream = StreamedAnswer(include_usage=asked.include_usage)

    def error_event(self, error: PatchbayError) -> bytes:
        """Return the event that tells a stream's reader of a failure."""
        return sse_event(encode(error_body(error)))

    async def run(self, request: Request) -> None:
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

    async def _tell(self, request: Request, model: UpstreamModel, field: str, text: str) -> None:
        """Show a piece of text to who reads a stream."""
        if not self.streaming or not text:
            return
        logprobs = model.logprobs if field == "content" else None
        envelope = self._envelope(model)
        await request.watch.wrote()
        if not request.reply.started:
            await request.reply.start(200, EVENT_STREAM + model.headers)
        await request.reply.write(self._stream.delta(envelope, {field: text}, logprobs=logprobs))

    async def _end(self, request: Request, model: UpstreamModel, end: FinalEvent) -> None:
        if end.aborted is not None and not end.aborted.hard:
            raise end.aborted
        pending = self._handed_out(end) if end.pending else ()
        if pending and self._asked.wants_json:  # clients parse all content as JSON
            self._content = Said()
        usage = summed(model.usages)
        snapshot = self._tools.snapshot
        report = report_of(snapshot.role, snapshot.revision, end, self._outputs)
        reason = told_reason(end)
        if end.aborted is not None:  # a hard one: it is as if nothing had been said
            self._content, self._reasoning = Said(), Said()
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
            out = whole_answer(
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

    def _scope(self, request: Request) -> HookScope:
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
