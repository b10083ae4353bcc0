"""A plugin and its calls, hooks and configuration, without a process: for the worker, and for ``patchbay.testing.run_plugin``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from patchbay._trace import TRACE, parse
from patchbay.errors import ConfigurationError, ToolTimeoutError
from patchbay.executor import Batch, Executor, ToolExecution
from patchbay.plugins import envelope
from patchbay.plugins.connection import MAX_FRAME_BYTES
from patchbay.plugins.envelope import Body
from patchbay.plugins.errors import PluginError
from patchbay.plugins.manifest import FILE_NAME, read_manifest
from patchbay.plugins.protocol import (
    CANCEL_GRACE,
    ENTRY_PREFIX,
    CancelRun,
    ConfigUpdate,
    Freeze,
    LlmToolState,
    Message,
    Progress,
    Result,
    StartReason,
    StartupResult,
    StopReason,
    Trigger,
    Unfreeze,
    tool_deadline,
)
from patchbay.plugins.sdk import NekoPluginBase, PluginConfig, PluginContext, call_hook, hooks_of, startup_task
from patchbay.tools.context import AgentScope
from patchbay.tools.context import Progress as ToolProgress
from patchbay.tools.results import describe, well_formed
from patchbay.types import ToolCall

_FRAME_OVERHEAD: Final = 4096
_MAX_ERROR_NAME: Final = 200

_logger = logging.getLogger("patchbay.plugins.worker")

T = TypeVar("T")


@dataclass(frozen=True)
class _Call(ToolCall):
    """The call of a TRIGGER. ``timeout`` is what the caller was promised in seconds."""

    req_id: str = ""
    timeout: float = 0.0


class PluginRuntime:
    """Creates and runs a plugin of ``plugin_class``, and handles the host's messages. No sockets, no processes.

    ``send`` accepts messages for the host from any thread; ``offer`` those that may be dropped. ``config`` replaces the
    ``plugin.toml`` in ``folder`` (None: it is read; raises ConfigurationError). ``make`` raises what the plugin's ``__init__``
    raises.
    """

    def __init__(
        self,
        plugin_class: type[NekoPluginBase],
        *,
        plugin_id: str,
        send: Callable[[Message], None],
        offer: Callable[[Message], object] | None = None,
        folder: Path | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.plugin_class = plugin_class
        self.plugin: NekoPluginBase | None = None
        self._send = send
        self._offer = offer if offer is not None else send
        self.context = PluginContext(plugin_id, send=send, folder=folder)
        self.context.config.replace(self._sections(config))
        self._hooks = hooks_of(plugin_class)
        self._executor = Executor(
            [], max_repeats=None, max_result_chars=None, cancel_grace=CANCEL_GRACE, on_progress=self._on_progress
        )
        self._batches: dict[str, tuple[Trigger, Batch | None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusing = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._hook_lock = asyncio.Lock()

    def make(self) -> NekoPluginBase:
        """Create the plugin. Raises PluginError if its ``__init__`` does not call that of its base."""
        plugin = self.plugin_class(self.context)
        if not self.context.is_made:
            raise PluginError(f"{self.plugin_class.__name__}.__init__ does not call super().__init__(ctx).")
        self.plugin = plugin
        return plugin

    async def start(self, *, reason: StartReason = "start", within: float = 10.0) -> StartupResult:
        """Run the startup hook for at most ``within`` seconds, and return how it ended."""
        try:
            await _run_within(within, self._startup(reason))
        except _TooSlowError:
            error_text = f"the startup took longer than {within:g} s"
            self.context.logger.error("%s", error_text)  # noqa: TRY400  (the traceback would be asyncio's)
        except Exception as error:
            error_text = describe(error)
            self.context.logger.exception("The startup failed")
        else:
            return StartupResult(status="ready", hooks=tuple(self._hooks))
        return StartupResult(status="failed", startup_error=well_formed(error_text), hooks=tuple(self._hooks))

    def register_tools(self) -> None:
        """Register the tools, and from now on every change of them."""
        self.context.tools.register_all()

    def receive(self, message: Message) -> None:
        """Handle a message of the host."""
        if isinstance(message, Trigger):
            self._trigger(message)
        elif isinstance(message, CancelRun):
            for trigger, batch in tuple(self._batches.values()):
                if batch is not None and message.run_id in (trigger.run_id, trigger.req_id):
                    self._spawn(batch.stop())
        elif isinstance(message, LlmToolState):
            self.context.tools.set_state(message)
        elif isinstance(message, Freeze):
            self._refusing = self._refusing or "is frozen"  # at once: a call may come with it
            self._spawn(self._freeze(message))
        elif isinstance(message, Unfreeze):
            self._spawn(self._unfreeze(message.req_id))
        elif isinstance(message, ConfigUpdate):
            self._spawn(self._change_config(message))

    async def stop(self, *, reason: StopReason = "stop", drain: float = 0.0, grace: float = 5.0) -> None:
        """Refuse new calls, give those in flight ``drain`` seconds, run the hooks within ``grace`` seconds. Does not raise."""
        self._refusing = "is stopping"
        await self._drain(drain)
        try:
            await _run_within(grace, self._shutdown(reason))
        except _TooSlowError:
            _logger.warning("The shutdown of plugin %r took longer than %g s", self.context.plugin_id, grace)
        except Exception:
            _logger.exception("The shutdown of plugin %r failed", self.context.plugin_id)
        if tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)

    async def _drain(self, seconds: float) -> None:
        """Wait ``seconds`` for the calls in flight, then cancel the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        await asyncio.gather(*(batch.stop() for _, batch in tuple(self._batches.values()) if batch is not None))

    async def _startup(self, reason: StartReason) -> None:
        startup_task.set(asyncio.current_task())
        await self._run_hook("startup", reason=reason)

    async def _shutdown(self, reason: StopReason) -> None:
        try:
            if reason == "reload":
                await self._run_hook("reload")
        finally:
            await self._run_hook("shutdown", reason=reason)

    async def _run_hook(self, id_: str, **arguments: Any) -> Any:
        """Run a hook if the plugin has it; one at a time."""
        name = self._hooks.get(id_)
        if name is None:
            return None
        async with self._hook_lock:
            return await call_hook(getattr(self.plugin, name), **arguments)

    async def _freeze(self, message: Freeze) -> None:
        if message.drain is not None:
            await self._drain(message.drain)
        await self._answer_with_hook(message.req_id, "freeze")

    async def _unfreeze(self, req_id: str) -> None:
        if await self._answer_with_hook(req_id, "unfreeze") and self._refusing == "is frozen":
            self._refusing = ""

    async def _change_config(self, message: ConfigUpdate) -> None:
        config = self.context.config
        previous = PluginConfig(config.snapshot())
        try:
            config.replace(self._sections(message.config))
        except (ConfigurationError, OSError) as error:
            self._answer(message.req_id, "config_change", envelope.body_of_failure("config_change", error))
            return
        if config.snapshot() == previous.snapshot():
            self._answer(message.req_id, "config_change", envelope.body_of(None))
        else:
            await self._answer_with_hook(message.req_id, "config_change", config=config, previous=previous)

    async def _answer_with_hook(self, req_id: str, id_: str, **arguments: Any) -> bool:
        try:
            body = envelope.body_of(await self._run_hook(id_, **arguments))
        except Exception as error:
            _logger.exception("The %s hook of plugin %r failed", id_, self.context.plugin_id)
            body = envelope.body_of_failure(id_, error)
        self._answer(req_id, id_, body)
        return body.error is None

    def _trigger(self, trigger: Trigger) -> None:
        if trigger.req_id in self._batches:
            _logger.error("The request %r came twice; it runs once", trigger.req_id)
            return
        name = trigger.entry_id.removeprefix(ENTRY_PREFIX)
        tool = self.context.tools.tools.get(name)
        if self._refusing:
            self._answer(trigger.req_id, name, envelope.not_running(self.context.plugin_id, why=self._refusing), ran=False)
            return
        if tool is None:
            self._answer(trigger.req_id, name, envelope.not_registered(self.context.plugin_id, name), ran=False)
            return
        requested = trigger.timeout
        timeout = tool.limit if requested is None or not requested > 0 else min(requested, tool.limit)
        call = _Call(trigger.call_id or trigger.req_id, name, trigger.args, req_id=trigger.req_id, timeout=timeout)
        self._batches[trigger.req_id] = (trigger, None)
        self._idle.clear()
        run = self._executor.begin_run(
            agent_scope=AgentScope(idempotency_key=trigger.idempotency_key),
            tool_timeout=tool_deadline(timeout),
            on_settled=self._on_execution,
        )
        run.set_tools({name: tool})
        TRACE.set(parse(trigger.trace))  # of the task of each call, which is made now
        batch = run.start_batch([call])
        if trigger.req_id in self._batches:  # else it has failed already
            self._batches[trigger.req_id] = (trigger, batch)

    def _on_execution(self, execution: ToolExecution) -> None:
        call = execution.call
        assert isinstance(call, _Call)
        del self._batches[call.req_id]
        if not self._batches:
            self._idle.set()
        self._answer(call.req_id, call.name, _body(call, execution), ran=execution.ran != "no")

    def _answer(self, req_id: str, name: str, body: Body, *, ran: bool = True) -> None:
        data = body.encode()
        if len(data) > MAX_FRAME_BYTES - _FRAME_OVERHEAD:
            body = envelope.too_large(name, len(data), MAX_FRAME_BYTES - _FRAME_OVERHEAD)
            data = body.encode()
        error = None if body.error is None else body.error[:_MAX_ERROR_NAME]
        self._send(Result(req_id=req_id, success=error is None, data=data, error=error, ran=ran))

    def _on_progress(self, call: ToolCall, progress: ToolProgress) -> None:
        assert isinstance(call, _Call)
        message = None if progress.message is None else well_formed(str(progress.message))
        data = None if progress.data is None else envelope.as_json(progress.data)
        self._offer(Progress(req_id=call.req_id, message=message, fraction=progress.fraction, data=data))

    def _sections(self, config: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if config is not None:
            return config
        folder = self.context.folder
        return read_manifest(folder).config if folder is not None and (folder / FILE_NAME).is_file() else {}

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _TooSlowError(Exception):
    """A hook exceeded its time."""


async def _run_within(seconds: float, hook: Coroutine[Any, Any, T]) -> T:
    """Run a hook of the plugin. Raises _TooSlowError when its time is up, even if it ignores cancellation."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(hook)
    deadline = loop.time() + seconds
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            result = task.result()
            if loop.time() > deadline:  # it blocked the loop, so nothing could cancel it
                raise _TooSlowError
            return result
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE)
        raise _TooSlowError
    finally:
        task.cancel()
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved, so asyncio does not log it


def _body(call: _Call, execution: ToolExecution) -> Body:
    if isinstance(execution.value, Body):
        return execution.value
    error = execution.error
    if isinstance(error, asyncio.CancelledError):
        return envelope.cancelled(call.name, ran="no" if execution.ran == "no" else "unknown")
    if isinstance(error, ToolTimeoutError):
        return envelope.timed_out(call.name, call.timeout)
    return envelope.body_of_failure(call.name, error or PluginError("it returned nothing"), ran=execution.ran)
