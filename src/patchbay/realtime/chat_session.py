"""A session of the same kind over chat completions: for models that are asked and answer, and do not listen.

What lives here: what a program does with a session, and the order of its turns. What does not: a turn itself (``chatturn``), and
how much of the chat is kept (``exchanges``).

Whoever holds a session need not know which kind it is: ``RealtimeSession`` has the same methods and events. There is no
connection to be lost, and no audio; a tool is waited for, however slow it is.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from patchbay.errors import ConfigurationError, MaxIterationsError, PatchbayError, ToolSyncError
from patchbay.executor import Budget, Executor, Run, ToolExecution
from patchbay.hooks.scope import HookScope
from patchbay.loop import (
    FinalEvent,
    ReplyEvent,
    TextEvent,
    ToolCallEvent,
    ToolProgressEvent,
    ToolResultEvent,
    UserOutputEvent,
    turn,
)
from patchbay.loop.events import LoopEvent
from patchbay.models.chat import ChatModel
from patchbay.models.hosted import HostedModel
from patchbay.models.resolve import resolve_model
from patchbay.realtime.config import RESULT_CHARS, RealtimeLimits, check_limits
from patchbay.realtime.event_queue import EventQueue
from patchbay.realtime.events import ConnectionEvent, ErrorEvent, IdleEvent, InterruptedEvent, ResponseEndEvent
from patchbay.realtime.history import TurnRecorder, kept
from patchbay.realtime.session import Session, sayable
from patchbay.tools import Tool, collect_tools, well_formed
from patchbay.tools.attachments import checked_kinds
from patchbay.tools.context import Progress
from patchbay.tools.kept import MemoryResultStore
from patchbay.tools.registry import Snapshot
from patchbay.types import Message, ToolCall

if TYPE_CHECKING:
    from patchbay.hooks import HookManager
    from patchbay.media import MediaStore


_CUT_SHORT: Final = ("length", "content_filter")
_AT_A_LIMIT: Final = ("max_iterations", "max_calls")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """What the turns of a chat have in common."""

    model: ChatModel
    instructions: Sequence[Message]
    parameters: Mapping[str, Any]
    attachments: Collection[str]
    limits: RealtimeLimits
    results: MemoryResultStore
    feed: EventQueue


class ChatTurn:
    """A turn of ``chat``, on from ``messages`` (without the instructions). ``messages()`` is the chat with it, at its end."""

    def __init__(self, chat: ChatConfig, messages: Sequence[Message], scope: HookScope) -> None:
        self._chat = chat
        self._begun_with = messages
        self._scope = scope
        self._told = TurnRecorder(messages)
        self._run: Run | None = None
        self._end: FinalEvent | None = None

    @property
    def is_cut_off(self) -> bool:
        """Whether what the model has said last is not all of it."""
        return self._end is None and self._told.is_answering

    def messages(self) -> Sequence[Message]:
        """What there is by now, each call with its result."""
        return self._told.messages() if self._end is None else self._end.messages[len(self._chat.instructions) :]

    def use(self, tools: Mapping[str, Tool], before: Mapping[str, Tool]) -> None:
        """Offer the model ``tools`` in the place of those ``before``, from the next request on."""
        if (run := self._run) is not None:
            added = {name: tool for name, tool in run.tools.items() if before.get(name) is not tool}  # by hooks, and the reader
            run.use({**tools, **added})

    def progressed(self, call: ToolCall, progress: Progress) -> None:
        """A running tool of the turn says how far it is: before its result, which the loop's events are not sure to be."""
        self._chat.feed.put(ToolProgressEvent(call, progress, self._told.rounds))

    async def take(self, executor: Executor) -> None:
        """Ask until there is an answer, with the tools of ``executor``, and at a limit once more, without tools.

        What goes wrong is an event. Raises CancelledError, when the tools have been stopped.
        """
        try:
            self._end = await self._answer(executor)
        except asyncio.CancelledError:
            self._ended("cancelled")
            raise
        except PatchbayError as error:
            self._fail(error)
        except Exception as bug:
            _logger.exception("A turn of an offline session has failed")
            self._fail(PatchbayError(f"The turn has failed: {bug!r}"))

    async def _answer(self, executor: Executor) -> FinalEvent:
        chat = self._chat
        run = self._run = executor.begin(
            budget=Budget(max_calls=chat.limits.max_calls),
            attachments=chat.attachments,
            results=chat.results,
            offer_reader=chat.results.size > 0,
            scope=self._scope,
            on_settled=self._settled,
        )
        end: FinalEvent | None = None
        events = turn(
            chat.model,
            run,
            [*chat.instructions, *self._begun_with],
            parameters=chat.parameters,
            max_iterations=chat.limits.max_rounds,
            stream=True,
            without=(ToolResultEvent,),  # results are told when they settle, also in a turn that is broken off
            last_word=True,
        )
        task = asyncio.current_task()
        async with aclosing(events):
            async for event in events:
                if task is not None and task.cancelling():  # whoever has swallowed it
                    raise asyncio.CancelledError
                if isinstance(event, FinalEvent):
                    end = event
                else:
                    self._tell(event, run)
        assert end is not None
        if end.finish_reason in _AT_A_LIMIT:  # it calls tools all the same
            chat.feed.put(ErrorEvent(MaxIterationsError(chat.limits.max_rounds)))
        if end.aborted is not None:
            self._fail(end.aborted)
        return end

    def _tell(self, event: LoopEvent, run: Run) -> None:
        told, emit = self._told, self._chat.feed.put
        if isinstance(event, TextEvent):
            told.text(event.delta)
            emit(event)
        elif isinstance(event, ReplyEvent):
            told.reply(event, run.tools)
            status = "incomplete" if event.finish_reason in _CUT_SHORT else "completed"
            emit(ResponseEndEvent(status, event.usage.counts()))
        elif isinstance(event, ToolCallEvent | UserOutputEvent):
            emit(event)

    def _settled(self, execution: ToolExecution) -> None:
        self._told.result(execution.result)
        self._chat.feed.put(ToolResultEvent(execution, self._told.rounds))

    def _fail(self, error: PatchbayError) -> None:
        self._ended("failed")
        self._chat.feed.put(ErrorEvent(error))

    def _ended(self, status: str) -> None:
        """Say that the answer that is under way, if one is, has ended."""
        if self._told.is_answering:
            self._chat.feed.put(ResponseEndEvent(status))


class ChatSession(Session):
    """A chat with a model, with tools, that is held as a realtime session is.

    ``model`` is what ``resolve_model`` takes (a name, ``URL#model``, a client, any ChatModel), and ``model_options`` are its
    keywords (``api_key``, ``base_url``, ``tool_mode``, ...). ``instructions`` stand before the chat, ``parameters`` go along with
    each request (``temperature``, ...). ``attachments`` are the kinds of files ("image", ...) that the model is shown. ``tools``,
    ``snapshot``, ``hooks``, ``media``, ``session_key``, ``agent_id`` and ``context`` are as for a RealtimeSession.

    Of ``limits`` these count: ``max_rounds`` requests with calls and ``max_calls`` calls in a turn, after which the model answers
    once more without tools; ``kept_items`` messages of together ``kept_chars`` characters of the chat; ``waiting`` events.

    Raises ConfigurationError and TypeError for a model or tools that are none.
    """

    input_rate: Final = None
    """It takes no audio."""

    def __init__(
        self,
        model: Any,
        *,
        tools: Iterable[Any] = (),
        snapshot: Snapshot | None = None,
        hooks: HookManager | None = None,
        media: MediaStore | None = None,
        session_key: str = "",
        agent_id: str = "",
        context: Mapping[str, Any] | None = None,
        instructions: str = "",
        parameters: Mapping[str, Any] | None = None,
        attachments: Sequence[str] = (),
        limits: RealtimeLimits | None = None,
        **model_options: Any,
    ) -> None:
        limits = limits if limits is not None else RealtimeLimits()
        check_limits(limits)
        super().__init__(limits.waiting)
        self.model = resolve_model(model, **model_options)
        self._owns_model = self.model is not model
        self._own = collect_tools(tools)
        self._tools: Mapping[str, Tool] = self._own
        self._hooks = hooks
        self._media = media
        name = getattr(self.model, "name", None) or ""
        self._scope = HookScope(agent_id, session_key=session_key, model=name, context=context or {})
        self._chat = ChatConfig(
            model=self.model,
            instructions=[{"role": "system", "content": well_formed(instructions)}] if instructions else [],
            parameters=dict(parameters or {}),
            attachments=checked_kinds(attachments),
            limits=limits,
            results=MemoryResultStore(max_chars=RESULT_CHARS),
            feed=self._feed,
        )
        self._messages: Sequence[Message] = ()
        self._is_cut_off = False  # the last of them, an answer
        self._unanswered: Sequence[Message] = ()  # what the user said since the last turn began
        self._executor: Executor | None = None
        self._turn: ChatTurn | None = None
        self._one_turn = asyncio.Lock()
        self._answering: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # that one, and those before it that are coming to their end
        self._is_connected = False
        if snapshot is not None:
            self._use(snapshot)

    # What a program does with it

    async def connect(self) -> None:
        """Begin. Raises ConfigurationError where that was done before. The model is first asked when something is said."""
        if self._is_connected or self._ending is not None:
            raise ConfigurationError("A session is connected once: make another one.")
        self._is_connected = True
        self._feed.put(ConnectionEvent("open"))

    async def send_text(self, text: str) -> None:
        """Say something as the user, and have it answered. What the model is saying ends, and tools that run are stopped.

        What was said and done by then stays in the chat. Raises InvalidRequestError for a text with nothing in it,
        ConfigurationError where the session is not open.
        """
        self._check_open()
        text = sayable(text)
        self._interrupt()
        said: Message = {"role": "user", "content": well_formed(text)}
        self._unanswered = self._kept([*self._unanswered, said], last_whole=True)
        self._begin_turn()

    async def send_audio(self, pcm: bytes) -> None:  # noqa: ARG002  (the face of all sessions)
        """Raise ConfigurationError: a chat has no audio."""
        raise ConfigurationError("This session takes text alone: speech needs a realtime model.")

    async def respond(self) -> None:
        """Have the model answer, where it has not; or again, where its answer was broken off, by ``interrupt`` or a failure."""
        self._check_open()
        if not self.idle:
            return
        if self._is_cut_off:
            self._messages = self._messages[:-1]
        if self._unanswered or (self._messages and self._messages[-1]["role"] != "assistant"):
            self._begin_turn()
        else:
            self._tell_idle()

    async def interrupt(self) -> None:
        """End what the model is saying, and stop the tools that run; nothing is answered until the user goes on."""
        self._check_open()
        if not self._interrupt():
            self._feed.put(InterruptedEvent())
            self._tell_idle()

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer the model these tools from the next request on, beside the program's own; calls that have begun keep theirs.

        Raises ToolSyncError where the session is closed.
        """
        if self._ending is not None:
            raise ToolSyncError("the session is closed")
        self._use(snapshot)

    @property
    def idle(self) -> bool:
        """Whether nothing is under way: the model says nothing and is not to, and no tool runs."""
        return self.is_open and not self._tasks

    @property
    def is_open(self) -> bool:
        """Whether the session can be spoken to."""
        return self._is_connected and self._ending is None

    @property
    def is_told(self) -> bool:
        """Whether the model knows the tools of the last ``use_tools``: the next request has them."""
        return True

    @property
    def dropped(self) -> Sequence[ToolExecution]:
        """Nothing: the result of a call that was stopped is in the chat."""
        return ()

    @property
    def messages(self) -> Sequence[Message]:
        """The chat, as much of it as is kept, without the instructions; of a turn that is under way, the question alone."""
        return tuple(self._messages)

    # Turns, one after the other

    def _interrupt(self) -> bool:
        """Break off the turn that is under way; return whether there was one."""
        under_way, self._answering = self._answering, None
        if under_way is None or under_way.done():
            return False
        under_way.cancel()
        self._feed.put(InterruptedEvent())
        return True

    def _begin_turn(self) -> None:
        self._answering = asyncio.get_running_loop().create_task(self._take_turn())
        self._tasks.add(self._answering)
        self._answering.add_done_callback(self._turn_ended)

    def _turn_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._tell_idle()

    def _tell_idle(self) -> None:
        if self.idle:
            self._feed.put(IdleEvent())

    async def _take_turn(self) -> None:
        """Answer what the user has said, once the turn before has come to its end."""
        async with self._one_turn:
            said, self._unanswered = self._unanswered, ()
            self._messages = self._kept([*self._messages, *said], last_whole=True)
            scope = replace(self._scope, turn_id=uuid.uuid4().hex)
            turn = self._turn = ChatTurn(self._chat, self._messages, scope)
            try:
                await turn.take(self._executor_for())
            finally:
                self._turn = None
                self._messages, self._is_cut_off = self._kept(turn.messages()), turn.is_cut_off

    def _kept(self, messages: Sequence[Message], *, last_whole: bool = False) -> Sequence[Message]:
        """As much of a chat as the limits allow."""
        limits = self._chat.limits
        return kept(messages, items=limits.kept_items, chars=limits.kept_chars, last_whole=last_whole)

    # Tools

    def _executor_for(self) -> Executor:
        """The executor of the tools of now."""
        if self._executor is None:
            self._executor = Executor(self._tools.values(), hooks=self._hooks, media=self._media, on_progress=self._progressed)
        return self._executor

    def _progressed(self, call: ToolCall, progress: Progress) -> None:
        if self._turn is not None:
            self._turn.progressed(call, progress)

    def _use(self, snapshot: Snapshot) -> None:
        before = self._tools
        self._tools = {**self._own, **snapshot.tools}
        self._executor = None
        if self._turn is not None:
            self._turn.use(self._tools, before)

    async def _end(self, reason: str) -> None:
        try:
            self._answering = None
            for each in self._tasks:
                if not each.cancelling():  # a second cancellation would cut off how it comes to its end
                    each.cancel()
            while self._tasks:
                await asyncio.wait(self._tasks)
            if self._owns_model and isinstance(self.model, HostedModel):
                await self.model.aclose()
        finally:
            self._feed.end(ConnectionEvent("closed", reason))
