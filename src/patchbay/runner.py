"""``ToolRunner``: runs a whole turn with a model (a name, an OpenAI client, any ChatModel) and tools."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from patchbay.background import run_blocking
from patchbay.errors import ConfigurationError, HookAbortError, InvalidRequestError, MaxIterationsError
from patchbay.executor import MAX_REPEATS, MAX_RESULT_CHARS, Budget, Executor, ToolExecution
from patchbay.executor.callbacks import Callbacks, checked_hooks
from patchbay.executor.results import checked_media
from patchbay.loop import FinalEvent, LoopEvent, ReplyEvent, ToolCallEvent, ToolResultEvent, turn
from patchbay.models.resolve import HostedModel, resolve_model
from patchbay.tools import Progress, ToolSearch, Validation
from patchbay.tools.output import checked_kinds
from patchbay.types import Message, ToolCall, Usage

if TYPE_CHECKING:
    from patchbay.hooks import HookManager, HookScope
    from patchbay.media import MediaStore

OnToolCall = Callable[[ToolCall, int], Awaitable[None] | None]
OnToolResult = Callable[[ToolExecution, int], Awaitable[None] | None]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """The result of one turn.

    ``content`` is the model's last text, None without one. ``messages`` is the whole conversation, each call with its result.
    ``finish_reason`` is "stop", "length", "content_filter", or the limit that ended the turn: "max_iterations", "max_calls" or
    "max_seconds"; or, if a hook ended it for the reason in ``aborted``, "abort_turn", or "hard_abort" with the messages as they
    were before. ``tool_executions`` are in call order, ``usage`` is summed over all rounds. ``callback_errors`` are exceptions of
    the callbacks, which did not end the run.
    """

    content: str | None
    messages: list[Message]
    iterations: int
    finish_reason: str
    tool_executions: tuple[ToolExecution, ...]
    usage: Usage
    callback_errors: tuple[Exception, ...] = ()
    aborted: HookAbortError | None = None


class ToolRunner:
    """Runs the loop: asks the model, runs its calls, sends it the results, until it answers.

    One runner can run any number of turns concurrently. Raises ConfigurationError and TypeError for invalid options: two tools of
    one name, an unusable schema, an invalid limit. ``aclose`` it to end its MCP servers and connections.

    - ``client``: an ``openai.OpenAI`` or ``openai.AsyncOpenAI`` (wrapped inside, so models without tool calling work too), a
      model's name or URL (``patchbay.models.resolve_model``), or any ChatModel
    - ``model``: that of runs that name none
    - ``options``: those of ``resolve_model``: of ``patchbay.wrap``, its ``tools`` under the name ``tool_mode``, for a name those
      of its connection
    - ``tools``: functions, Tools and Toolsets, mixed
    - ``mcp_servers``: servers whose tools are added by the first run: a list of ``patchbay.mcp.McpServer``, the mapping of
      ``mcpServers``, or the path of a file with it
    - ``validate``: True, False (arguments need only be a JSON object) or a dict with ``coerce_types`` and ``use_defaults``
    - ``tool_timeout``: seconds, for tools that have no timeout of their own
    - ``on_tool_call(call, iteration)``, ``on_tool_result(execution, iteration)``: called before each call runs, and when it has
      settled; may be async. Their exceptions are collected in ``RunResult.callback_errors``, and the run goes on
    - ``on_progress(call, progress)``: gets the progress of running tools
    - ``before``, ``after``: may answer a call before its tool runs, or change its result (``patchbay.executor.callbacks``)
    - ``hooks``: called with requests, answers and calls; may end a turn (``patchbay.hooks``)
    - ``media``: stores the files of results (None: ``patchbay.media.shared_store``)
    - ``max_iterations``, ``max_calls``, ``max_seconds``: the rounds, calls and seconds after which a run ends, with that as its
      finish_reason (None: no limit)
    - ``raise_on_max_iterations``: a turn without an answer raises MaxIterationsError instead
    - ``max_repeats``: a call that gave the same result so many times is refused
    - ``max_result_chars``: the most characters of a result for the model, which gets a tool to read the rest
    - ``attachments``: the kinds of files of results that the model accepts: "image", "audio", "file"
    - ``tool_search``: with more than 40 tools the model is offered a search in their place; None: always all of them
    """

    def __init__(
        self,
        client: Any,
        tools: Iterable[Any] = (),
        *,
        mcp_servers: Any = (),
        max_iterations: int = 10,
        validate: bool | Mapping[str, bool] = True,
        raise_on_max_iterations: bool = False,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        on_progress: Callable[[ToolCall, Progress], object] | None = None,
        before: Callbacks = None,
        after: Callbacks = None,
        hooks: HookManager | None = None,
        media: MediaStore | None = None,
        tool_timeout: float | None = None,
        max_calls: int | None = None,
        max_seconds: float | None = None,
        max_repeats: int | None = MAX_REPEATS,
        max_result_chars: int | None = MAX_RESULT_CHARS,
        attachments: Collection[str] = (),
        tool_search: ToolSearch | None = ToolSearch(),  # noqa: B008  (frozen)
        tool_mode: str | None = None,
        model: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(max_iterations, bool) or not isinstance(max_iterations, int) or max_iterations < 1:
            raise ConfigurationError(f"max_iterations must be a whole number of at least 1, not {max_iterations!r}.")
        for name, callback in (("on_tool_call", on_tool_call), ("on_tool_result", on_tool_result)):
            if callback is not None and not callable(callback):
                raise ConfigurationError(f"{name} must be callable, not {type(callback).__name__}.")
        validation = _validation(validate)
        if mcp_servers:
            from patchbay.mcp import McpToolset

            tools = [*tools, McpToolset(mcp_servers)]
        self._executor = Executor(
            tools,
            validation=validation,
            tool_timeout=tool_timeout,
            max_repeats=max_repeats,
            max_result_chars=max_result_chars,
            before=before,
            after=after,
            hooks=checked_hooks(hooks),
            media=checked_media(media),
            on_progress=on_progress,
            search=tool_search,
        )
        Budget(max_calls=max_calls, max_seconds=max_seconds)  # (raises for invalid limits)
        self._max_calls = max_calls
        self._max_seconds = max_seconds
        self._attachments = checked_kinds(attachments)
        if validation is not None:
            for tool in self._executor.tools.values():
                tool.check()
        if tool_mode not in (None, "auto", "text", "native"):
            raise ConfigurationError(f"tool_mode is {tool_mode!r}: use 'auto', 'text' or 'native'.")
        self._name = uuid.uuid4().hex[:12]
        self._turns = itertools.count(1)
        self._given = client
        self._default_model = model
        self._model = resolve_model(client, tool_mode=tool_mode, **options)
        self._max_iterations = max_iterations
        self._raise_on_max_iterations = raise_on_max_iterations
        self._on_tool_call = on_tool_call
        self._on_tool_result = on_tool_result
        callbacks = {ReplyEvent: None, ToolCallEvent: on_tool_call, ToolResultEvent: on_tool_result}
        self._unused_events = tuple(kind for kind, callback in callbacks.items() if callback is None)

    async def aclose(self) -> None:
        """End MCP servers, and close the connections of a model that was created from its name.

        Those of the caller's client or ChatModel stay open.
        """
        for toolset in self._executor.toolsets:
            await toolset.aclose()
        if isinstance(self._model, HostedModel) and self._model is not self._given:
            await self._model.aclose()

    def close(self) -> None:
        """Close the connections of ``run_sync``."""
        run_blocking(self.aclose())

    async def run(
        self,
        messages: str | Sequence[Message],
        model: str | None = None,
        *,
        tool_choice: Any = None,
        **parameters: Any,
    ) -> RunResult:
        """Run one turn; cancelling it stops the model and the tools.

        ``messages`` is OpenAI's list, or the user's text. ``parameters`` (temperature, max_tokens, ...) are passed on. Raises
        UpstreamError if the model's server fails, MaxIterationsError if configured.
        """
        errors: list[Exception] = []
        events = self._turn(messages, model, tool_choice, parameters, stream=False, errors=errors)
        try:
            async for event in events:
                if isinstance(event, FinalEvent):
                    return RunResult(
                        event.content,
                        event.messages,
                        event.iterations,
                        event.finish_reason,
                        event.tool_executions,
                        event.usage,
                        tuple(errors),
                        event.aborted,
                    )
        finally:
            await events.aclose()
        raise AssertionError("a turn ended without its final event")

    def run_sync(
        self,
        messages: str | Sequence[Message],
        model: str | None = None,
        *,
        tool_choice: Any = None,
        **parameters: Any,
    ) -> RunResult:
        """Run one turn from sync code; inside a running event loop this blocks that loop.

        All such runs share one background event loop, so an async client keeps its connections.
        """
        return run_blocking(self.run(messages, model, tool_choice=tool_choice, **parameters))

    async def run_stream(
        self,
        messages: str | Sequence[Message],
        model: str | None = None,
        *,
        tool_choice: Any = None,
        **parameters: Any,
    ) -> AsyncGenerator[LoopEvent, None]:
        """Run one turn as events, the last of type "final"; closing the iterator stops the model and the tools.

        An event's ``type`` is "text" or "reasoning" (``delta``), "tool_call" (``tool_call``, ``iteration``), "tool_progress"
        (``tool_call``, ``progress``, ``iteration``), "tool_result" (``execution``, ``iteration``), "user_output" (``text``,
        ``media``), "iteration_end" (``iteration``, ``finish_reason``) or "final" (as RunResult).
        """
        events = self._turn(messages, model, tool_choice, parameters, stream=True, errors=[])
        async with aclosing(events):
            async for event in events:
                yield event

    async def _turn(
        self,
        messages: str | Sequence[Message],
        model: str | None,
        tool_choice: Any,
        parameters: dict[str, Any],
        *,
        stream: bool,
        errors: list[Exception],
    ) -> AsyncGenerator[LoopEvent, None]:
        """Yield the loop's events, and call the callbacks. Raises MaxIterationsError if configured."""
        conversation = _conversation(messages)
        _reject_own(parameters)
        if (name := model if model is not None else self._default_model) is not None:
            parameters = {"model": name, **parameters}
        executor = await self._executor.with_toolsets()
        budget = Budget(max_calls=self._max_calls, max_seconds=self._max_seconds)
        events = turn(
            self._model,
            executor.begin_run(budget=budget, attachments=self._attachments, scope=self._scope()),
            conversation,
            tool_choice=tool_choice,
            parameters=parameters,
            max_iterations=self._max_iterations,
            stream=stream,
            without=(ReplyEvent,) if stream else self._unused_events,
        )
        try:
            async for event in events:
                if isinstance(event, ToolCallEvent) and self._on_tool_call is not None:
                    await _notify(self._on_tool_call, event.tool_call, event.iteration, errors)
                elif isinstance(event, ToolResultEvent) and self._on_tool_result is not None:
                    await _notify(self._on_tool_result, event.execution, event.iteration, errors)
                elif isinstance(event, FinalEvent) and event.finish_reason == "max_iterations" and self._raise_on_max_iterations:
                    raise MaxIterationsError(event.iterations)
                yield event
        finally:
            await events.aclose()

    def _scope(self) -> HookScope | None:
        if self._executor.hooks is None:
            return None
        from patchbay.hooks import HookScope

        return HookScope(turn_id=f"{self._name}-turn-{next(self._turns)}")


async def _notify(callback: Callable[..., Any], what: Any, iteration: int, errors: list[Exception]) -> None:
    """Call a callback; its failure is reported and does not end the run."""
    try:
        answer = callback(what, iteration)
        if inspect.isawaitable(answer):
            await answer
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        _logger.exception("The callback %r was cancelled", callback)
    except Exception as error:
        errors.append(error)
        _logger.exception("The callback %r failed", callback)


def _validation(validate: bool | Mapping[str, bool]) -> Validation | None:  # noqa: FBT001  (the option as the caller gave it)
    if validate is True:
        return Validation()
    if validate is False:
        return None
    known = {item.name for item in fields(Validation)}
    if not isinstance(validate, Mapping) or not set(validate) <= known:
        raise ConfigurationError(f"validate must be True, False or a dict with {' and '.join(sorted(known))}, not {validate!r}.")
    for name, value in validate.items():
        if not isinstance(value, bool):
            raise ConfigurationError(f"validate[{name!r}] must be True or False, not {value!r}.")
    return Validation(**validate)


def _conversation(messages: Any) -> list[Message]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise InvalidRequestError("'messages' must be an array of message objects, or the user's text.", param="messages")
    return [dict(message) for message in messages]


def _reject_own(parameters: Mapping[str, Any]) -> None:
    """Reject parameters that conflict with the runner's own."""
    if "tools" in parameters:
        raise InvalidRequestError("'tools' belong to the ToolRunner: pass them when it is made.", param="tools")
    if "stream" in parameters:
        raise InvalidRequestError("'stream' is chosen by calling run or run_stream.", param="stream")
    if parameters.get("n") not in (None, 1):
        raise InvalidRequestError("'n' must be 1: a run has one answer.", param="n")
