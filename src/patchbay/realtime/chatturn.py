"""One turn of a chat, from what the user said to the answer: told as a realtime session tells it, and what is left of it.

What lives here: the turn's limits and events. What does not: which turn comes when (``offline``), what is kept of one that is
broken off (``told``), and how a model and its tools are asked (``patchbay.loop``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from patchbay.errors import MaxIterationsError, PatchbayError
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
from patchbay.realtime.events import ErrorEvent, ResponseEndEvent
from patchbay.realtime.feed import Feed
from patchbay.realtime.settings import RealtimeLimits
from patchbay.realtime.told import Told
from patchbay.tools import Tool
from patchbay.tools.context import Progress
from patchbay.tools.kept import MemoryResultStore
from patchbay.types import Message, ToolCall

_CUT_SHORT: Final = ("length", "content_filter")
_AT_A_LIMIT: Final = ("max_iterations", "max_calls")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Chat:
    """What the turns of a chat have in common."""

    model: ChatModel
    instructions: Sequence[Message]
    parameters: Mapping[str, Any]
    attachments: Collection[str]
    limits: RealtimeLimits
    results: MemoryResultStore
    feed: Feed


class ChatTurn:
    """A turn of ``chat``, on from ``messages`` (without the instructions). ``messages()`` is the chat with it, at its end."""

    def __init__(self, chat: Chat, messages: Sequence[Message], scope: HookScope) -> None:
        self._chat = chat
        self._begun_with = messages
        self._scope = scope
        self._told = Told(messages)
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
