"""A session over chat completions with the interface of ``RealtimeSession``, for models without a realtime API."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from patchbay.errors import ConfigurationError, MaxIterationsError, PatchbayError, ToolSyncError
from patchbay.executor import Budget, Executor, Run, ToolExecution
from patchbay.hooks.types import HookScope
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
from patchbay.models.chat_model import ChatModel
from patchbay.models.resolve import HostedModel, resolve_model
from patchbay.realtime.config import RESULT_CHARS, RealtimeLimits, check_limits
from patchbay.realtime.event_queue import EventQueue
from patchbay.realtime.events import ConnectionEvent, ErrorEvent, IdleEvent, InterruptedEvent, ResponseEndEvent
from patchbay.realtime.history import TurnRecorder, trim_history
from patchbay.realtime.session import BaseSession, validated_text
from patchbay.tools import Tool, ToolSearch, collect_tools, well_formed
from patchbay.tools.context import Progress
from patchbay.tools.output import checked_kinds
from patchbay.tools.registry import Snapshot
from patchbay.tools.result_store import MemoryResultStore
from patchbay.types import Message, ToolCall

if TYPE_CHECKING:
    from patchbay.hooks import HookManager
    from patchbay.media import MediaStore


_INCOMPLETE_REASONS: Final = ("length", "content_filter")
_LIMIT_REASONS: Final = ("max_iterations", "max_calls")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """Settings shared by the turns of a chat."""

    model: ChatModel
    instructions: Sequence[Message]
    parameters: Mapping[str, Any]
    attachments: Collection[str]
    limits: RealtimeLimits
    results: MemoryResultStore
    queue: EventQueue


class ChatTurn:
    """One turn of a chat, from the user's text to the answer, with the events of a realtime session.

    ``messages`` is the chat before it, without the instructions.
    """

    def __init__(self, chat: ChatConfig, messages: Sequence[Message], scope: HookScope) -> None:
        self._chat = chat
        self._initial_messages = messages
        self._scope = scope
        self._recorder = TurnRecorder(messages)
        self._tool_run: Run | None = None
        self._end: FinalEvent | None = None

    @property
    def is_cut_off(self) -> bool:
        """True if the last answer is incomplete."""
        return self._end is None and self._recorder.is_answering

    def messages(self) -> Sequence[Message]:
        """Return the chat including this turn, each call with its result."""
        return self._recorder.messages() if self._end is None else self._end.messages[len(self._chat.instructions) :]

    def use(self, executor: Executor) -> None:
        """Use the tools of ``executor`` from the next request on."""
        if self._tool_run is not None:
            self._tool_run.switch_executor(executor)

    def on_progress(self, call: ToolCall, progress: Progress) -> None:
        """Emit a tool's progress, ahead of its result."""
        self._chat.queue.put(ToolProgressEvent(call, progress, self._recorder.rounds))

    async def run_turn(self, executor: Executor) -> None:
        """Run the turn: request until there is an answer, at a limit once more without tools.

        Errors become events. Raises CancelledError once the tools have stopped.
        """
        try:
            self._end = await self._answer(executor)
        except asyncio.CancelledError:
            self._end_response("cancelled")
            raise
        except PatchbayError as error:
            self._fail(error)
        except Exception as bug:
            _logger.exception("A turn of a chat session failed")
            self._fail(PatchbayError(f"The turn has failed: {bug!r}"))

    async def _answer(self, executor: Executor) -> FinalEvent:
        chat = self._chat
        run = self._tool_run = executor.begin_run(
            budget=Budget(max_calls=chat.limits.max_calls),
            attachments=chat.attachments,
            results=chat.results,
            offer_reader=chat.results.size > 0,
            scope=self._scope,
            on_settled=self._on_result,
        )
        end: FinalEvent | None = None
        events = turn(
            chat.model,
            run,
            [*chat.instructions, *self._initial_messages],
            parameters=chat.parameters,
            max_iterations=chat.limits.max_rounds,
            stream=True,
            without=(ToolResultEvent,),  # results are emitted when they settle, also in an interrupted turn
            final_answer_without_tools=True,
        )
        task = asyncio.current_task()
        async with aclosing(events):
            async for event in events:
                if task is not None and task.cancelling():  # a cancellation was swallowed
                    raise asyncio.CancelledError
                if isinstance(event, FinalEvent):
                    end = event
                else:
                    self._on_event(event, run)
        assert end is not None
        if end.finish_reason in _LIMIT_REASONS:  # it still calls tools
            chat.queue.put(ErrorEvent(MaxIterationsError(chat.limits.max_rounds)))
        if end.aborted is not None:
            self._fail(end.aborted)
        return end

    def _on_event(self, event: LoopEvent, run: Run) -> None:
        recorder, emit = self._recorder, self._chat.queue.put
        if isinstance(event, TextEvent):
            recorder.add_text(event.delta)
            emit(event)
        elif isinstance(event, ReplyEvent):
            recorder.reply(event, run.tools)
            status = "incomplete" if event.finish_reason in _INCOMPLETE_REASONS else "completed"
            emit(ResponseEndEvent(status, event.usage.counts()))
        elif isinstance(event, ToolCallEvent | UserOutputEvent):
            emit(event)

    def _on_result(self, execution: ToolExecution) -> None:
        self._recorder.result(execution.result)
        self._chat.queue.put(ToolResultEvent(execution, self._recorder.rounds))

    def _fail(self, error: PatchbayError) -> None:
        self._end_response("failed")
        self._chat.queue.put(ErrorEvent(error))

    def _end_response(self, status: str) -> None:
        """Emit the end of an answer that has begun."""
        if self._recorder.is_answering:
            self._chat.queue.put(ResponseEndEvent(status))


class ChatSession(BaseSession):
    """A chat with a model and tools, with the interface of a realtime session.

    ``model`` is what ``resolve_model`` takes (a name, ``URL#model``, a client, any ChatModel), and ``model_options`` are its
    keywords (``api_key``, ``base_url``, ``tool_mode``, ...). ``instructions`` precede the chat, ``parameters``
    (``temperature``, ...) go into each request. ``attachments`` are the kinds of files ("image", ...) that the model accepts.
    ``tools``, ``snapshot``, ``hooks``, ``media``, ``session_key``, ``agent_id`` and ``context`` are those of a RealtimeSession.

    Of ``limits`` these apply: ``max_rounds`` requests with calls and ``max_calls`` calls in a turn, after which the model
    answers once more without tools; ``kept_items`` messages of together ``kept_chars`` characters of history; ``waiting``
    unread events.

    Raises ConfigurationError or TypeError for an invalid model or invalid tools.
    """

    input_rate: Final = None
    """None: the session takes no audio."""

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
        tool_search: ToolSearch | None = ToolSearch(),  # noqa: B008  (frozen)
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
        self._tool_search = tool_search
        name = getattr(self.model, "name", None) or ""
        self._scope = HookScope(agent_id, session_key=session_key, model=name, context=context or {})
        self._chat = ChatConfig(
            model=self.model,
            instructions=[{"role": "system", "content": well_formed(instructions)}] if instructions else [],
            parameters=dict(parameters or {}),
            attachments=checked_kinds(attachments),
            limits=limits,
            results=MemoryResultStore(max_chars=RESULT_CHARS),
            queue=self._queue,
        )
        self._messages: Sequence[Message] = ()
        self._is_cut_off = False  # the last message
        self._unanswered: Sequence[Message] = ()  # user texts since the last turn started
        self._executor: Executor | None = None
        self._turn: ChatTurn | None = None
        self._turn_lock = asyncio.Lock()
        self._answering: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()  # that one and earlier ones that are ending
        self._is_connected = False
        if snapshot is not None:
            self._serve(snapshot)

    # Called by the program

    async def connect(self) -> None:
        """Open the session. Raises ConfigurationError on a second call. The first request goes out with the first text."""
        if self._is_connected or self._ending is not None:
            raise ConfigurationError("A session is connected once: make another one.")
        self._is_connected = True
        self._queue.put(ConnectionEvent("open"))

    async def send_text(self, text: str) -> None:
        """Send a user text and request an answer. Stops the current answer and its tools.

        Text and results so far stay in the chat. Raises InvalidRequestError for an empty text, ConfigurationError if not open.
        """
        self._check_open()
        text = validated_text(text)
        self._interrupt()
        question: Message = {"role": "user", "content": well_formed(text)}
        self._unanswered = self._trimmed([*self._unanswered, question], last_whole=True)
        self._begin_turn()

    async def send_audio(self, pcm: bytes) -> None:  # noqa: ARG002  (interface of BaseSession)
        """Raise ConfigurationError: a chat takes no audio."""
        raise ConfigurationError("This session takes text alone: speech needs a realtime model.")

    async def respond(self) -> None:
        """Request an answer if there is none yet, or repeat one that was interrupted or failed."""
        self._check_open()
        if not self.idle:
            return
        if self._is_cut_off:
            self._messages = self._messages[:-1]
        if self._unanswered or (self._messages and self._messages[-1]["role"] != "assistant"):
            self._begin_turn()
        else:
            self._emit_idle()

    async def interrupt(self) -> None:
        """Stop the current answer and its tools; nothing is requested until the user continues."""
        self._check_open()
        if not self._interrupt():
            self._queue.put(InterruptedEvent())
            self._emit_idle()

    async def use_tools(self, snapshot: Snapshot) -> None:
        """Offer these tools from the next request on, beside the program's own; running calls keep theirs.

        Raises ToolSyncError if the session is closed.
        """
        if self._ending is not None:
            raise ToolSyncError("the session is closed")
        self._serve(snapshot)

    @property
    def idle(self) -> bool:
        """True if no request and no tool is running."""
        return self.is_open and not self._tasks

    @property
    def is_open(self) -> bool:
        """True if the session accepts input."""
        return self._is_connected and self._ending is None

    @property
    def is_synced(self) -> bool:
        """Always True: the next request carries the tools of the last ``use_tools``."""
        return True

    @property
    def dropped(self) -> Sequence[ToolExecution]:
        """Always empty: the results of stopped calls stay in the chat."""
        return ()

    @property
    @override
    def history(self) -> Sequence[Message]:
        return tuple(self._turn.messages() if self._turn is not None else self._messages)

    @override
    def restore(self, history: Sequence[Message]) -> None:
        self._messages = self._trimmed(history)

    @property
    def messages(self) -> Sequence[Message]:
        """The history as far as it is kept, without the instructions; of a running turn only the question."""
        return tuple(self._messages)

    # Turns

    def _interrupt(self) -> bool:
        """Cancel the running turn; return whether there was one."""
        running, self._answering = self._answering, None
        if running is None or running.done():
            return False
        running.cancel()
        self._queue.put(InterruptedEvent())
        return True

    def _begin_turn(self) -> None:
        self._answering = asyncio.get_running_loop().create_task(self._run_turn())
        self._tasks.add(self._answering)
        self._answering.add_done_callback(self._on_turn_done)

    def _on_turn_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._emit_idle()

    def _emit_idle(self) -> None:
        if self.idle:
            self._queue.put(IdleEvent())

    async def _run_turn(self) -> None:
        """Run a turn once the previous one has ended."""
        async with self._turn_lock:
            questions, self._unanswered = self._unanswered, ()
            self._messages = self._trimmed([*self._messages, *questions], last_whole=True)
            scope = replace(self._scope, turn_id=uuid.uuid4().hex)
            turn = self._turn = ChatTurn(self._chat, self._messages, scope)
            try:
                await turn.run_turn(self._current_executor())
            finally:
                self._turn = None
                self._messages, self._is_cut_off = self._trimmed(turn.messages()), turn.is_cut_off

    def _trimmed(self, messages: Sequence[Message], *, last_whole: bool = False) -> Sequence[Message]:
        limits = self._chat.limits
        return trim_history(messages, items=limits.kept_items, chars=limits.kept_chars, last_whole=last_whole)

    # Tools

    def _current_executor(self) -> Executor:
        if self._executor is None:
            self._executor = Executor(
                self._tools.values(),
                hooks=self._hooks,
                media=self._media,
                on_progress=self._on_progress,
                search=self._tool_search,
            )
        return self._executor

    def _on_progress(self, call: ToolCall, progress: Progress) -> None:
        if self._turn is not None:
            self._turn.on_progress(call, progress)

    def _serve(self, snapshot: Snapshot) -> None:
        self._tools = {**self._own, **snapshot.tools}
        self._executor = None
        if self._turn is not None:
            self._turn.use(self._current_executor())

    async def _end(self, reason: str) -> None:
        try:
            self._answering = None
            for each in self._tasks:
                if not each.cancelling():  # a second cancellation would interrupt its cleanup
                    each.cancel()
            while self._tasks:
                await asyncio.wait(self._tasks)
            if self._owns_model and isinstance(self.model, HostedModel):
                await self.model.aclose()
        finally:
            self._queue.close(ConnectionEvent("closed", reason))
