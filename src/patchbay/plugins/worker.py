"""The process that runs one plugin: ``python -m patchbay.plugins.worker``, started by a host."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from patchbay.errors import ConfigurationError, ToolTimeoutError
from patchbay.executor import Batch, Executor, ToolExecution
from patchbay.plugins import envelope
from patchbay.plugins.envelope import Body
from patchbay.plugins.errors import PluginError
from patchbay.plugins.manifest import FILE_NAME, load_class, read_manifest
from patchbay.plugins.protocol import (
    CANCEL_GRACE,
    ENTRY_PREFIX,
    MAX_FRAME_BYTES,
    PROTOCOL_VERSION,
    Bootstrap,
    CancelRun,
    ConfigUpdate,
    Connection,
    Crash,
    Freeze,
    Hello,
    LlmToolState,
    Log,
    Message,
    Ping,
    Progress,
    Result,
    Start,
    StartReason,
    StartupResult,
    Stop,
    StopReason,
    Trigger,
    Unfreeze,
    read_bootstrap,
    tool_deadline,
)
from patchbay.plugins.sdk import NekoPluginBase, PluginConfig, PluginContext, call_hook, hooks_of, startup_task
from patchbay.tools.context import Progress as ToolProgress
from patchbay.tools.context import Surroundings
from patchbay.tools.results import describe, well_formed
from patchbay.types import ToolCall

_MAX_FRAMES: Final = 5
_MAX_TRACEBACK_CHARS: Final = 16 * 1024
_HERE: Final = str(Path(__file__).parent) + os.sep
_ELSEWHERE: Final = frozenset({"site-packages", "dist-packages"})

# What is written wrongly: a name, an import, a class, an option of @llm_tool. All else (a file that is not there, a server that
# does not answer) may be better the next time.
_LASTING: Final = (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, PluginError)


def crash_of(error: BaseException, folder: Path | None) -> Crash:
    """Return what the host is told of an exception that loading a plugin of ``folder`` (None: the import path) raised."""
    lasts = isinstance(error, _LASTING)
    said = _own_part(error, folder) if lasts else "".join(traceback.format_exception(_from_the_plugin_on(error)))
    reason = describe(error) if not isinstance(error, PluginError) else str(error)
    return Crash(error=well_formed(reason), traceback=well_formed(said[-_MAX_TRACEBACK_CHARS:]), lasts=lasts)


def _own_part(error: BaseException, folder: Path | None) -> str:
    """Format the last frames of the plugin's own files, and of a SyntaxError the line; empty where there is nothing to show."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    if not frames:
        return "".join(traceback.format_exception_only(error)) if isinstance(error, SyntaxError) else ""
    root = (folder or Path(frames[0].filename).parent).resolve()
    own = [frame for frame in frames if _is_in(Path(frame.filename), root)][-_MAX_FRAMES:]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])


def _is_in(file: Path, root: Path) -> bool:
    file = file.resolve()
    return file.is_relative_to(root) and not _ELSEWHERE.intersection(file.relative_to(root).parts)


def _from_the_plugin_on(error: BaseException) -> BaseException:
    """Leave out how the plugin came to be imported, which is of no interest to who wrote it."""
    place = error.__traceback__
    while place is not None and _is_ours(place.tb_frame.f_code.co_filename):
        place = place.tb_next
    return error.with_traceback(place)


def _is_ours(file: str) -> bool:
    return file.startswith(("<frozen importlib", _HERE)) or file == importlib.__file__


MAX_RECORD_CHARS = 32 * 1024
"""How much of one record is sent."""
MOST_AT_ONCE = 500
AT_ONCE_SECONDS = 0.1
"""So many records are sent in so many seconds; more would cost the host the time that it has for other plugins."""


class HostHandler(logging.Handler):
    """Hands records to ``offer``, which says whether it took them; what was dropped is counted, and told with the next one.

    From any thread. Where there is no host any more, records go to standard error.
    """

    def __init__(self, offer: Callable[[Log], bool | None]) -> None:
        super().__init__()
        self._offer = offer
        self._dropped = 0
        self._since = 0.0
        self._sent = 0
        self._formatter = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. Never raises."""
        try:
            if self._is_too_much():
                self._dropped += 1
                return
            text = well_formed(self._formatter.format(record))
            if len(text) > MAX_RECORD_CHARS:
                text = f"{text[:MAX_RECORD_CHARS]}... ({len(text)} characters)"
            message = Log(level=record.levelno, logger=record.name, message=text, created=record.created, dropped=self._dropped)
            taken = self._offer(message)
            if taken is None:
                print(f"{record.levelname} {record.name}: {text}", file=sys.stderr)  # noqa: T201  (nobody else is left to tell)
            self._dropped = self._dropped + 1 if taken is False else 0
        except Exception:  # noqa: BLE001  (as logging's own handlers: a record must not break what it is about)
            self.handleError(record)

    def _is_too_much(self) -> bool:
        now = time.monotonic()
        if now - self._since > AT_ONCE_SECONDS:
            self._since, self._sent = now, 0
        self._sent += 1
        return self._sent > MOST_AT_ONCE


GONE_CODE = 70
"""The exit code of a process whose host is gone."""


class ParentWatchdog:
    """A thread that calls ``on_gone`` when the other end of ``fd`` is closed, and ends the process ``grace`` seconds later."""

    def __init__(self, fd: int, on_gone: Callable[[], None]) -> None:
        self.grace = 5.0
        self.is_gone = False
        self._fd = fd
        self._on_gone = on_gone

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="patchbay-host-watch", daemon=True).start()

    def _watch(self) -> None:
        try:
            while os.read(self._fd, 1024):
                pass
        except OSError:
            pass
        self.is_gone = True
        end_within(self.grace, GONE_CODE, last=end_group)
        self._on_gone()


def end_within(seconds: float, code: int, *, last: Callable[[], object] = lambda: None) -> None:
    """End the process in ``seconds`` whatever it does then (threads, atexit functions, endless loops), ``last`` before that."""

    def end() -> None:
        last()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def end_group() -> None:
    """End what the plugin has started, where this process leads a group of its own; and this process with it."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)


_logger = logging.getLogger(__name__)
_ROOM = 4096
"""What of a frame is not the body of a result."""
_SHOWN = 200
"""How much of an error is its name."""

T = TypeVar("T")


@dataclass(frozen=True)
class _Call(ToolCall):
    """A call, the TRIGGER that asks for it, and the seconds that were promised to whoever waits."""

    req_id: str = ""
    promised: float = 0.0


class PluginRuntime:
    """Runs a plugin of ``plugin_class``.

    ``send`` takes the messages for the host, from any thread; ``offer`` those that may be dropped. ``config`` stands for what
    ``plugin.toml`` in ``folder`` says (None: that is read). Raises ConfigurationError for a file that is wrong; ``make`` raises
    what the plugin's ``__init__`` raises.
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
            [], max_repeats=None, max_result_chars=None, cancel_grace=CANCEL_GRACE, on_progress=self._progress
        )
        self._batches: dict[str, tuple[Trigger, Batch | None]] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusing = ""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turn = asyncio.Lock()

    def make(self) -> NekoPluginBase:
        """Make the plugin. Raises PluginError if it does not call the ``__init__`` of its base."""
        plugin = self.plugin_class(self.context)
        if not self.context.is_made:
            raise PluginError(f"{self.plugin_class.__name__}.__init__ does not call super().__init__(ctx).")
        self.plugin = plugin
        return plugin

    async def start(self, *, reason: StartReason = "start", within: float = 10.0) -> StartupResult:
        """Run the startup hook, which has ``within`` seconds, and return how it ended; nothing is sent."""
        try:
            await _within(within, self._startup(reason))
        except _TooSlowError:
            said = f"the startup took longer than {within:g} s"
            self.context.logger.error("%s", said)  # noqa: TRY400  (where it stood is of no interest)
        except Exception as error:
            said = describe(error)
            self.context.logger.exception("The startup failed")
        else:
            return StartupResult(status="ready", hooks=tuple(self._hooks))
        return StartupResult(status="failed", startup_error=well_formed(said), hooks=tuple(self._hooks))

    def open(self) -> None:
        """Register the tools, and each change of them from now on."""
        self.context.tools.open()

    def receive(self, message: Message) -> None:
        """Take a message of the host; what takes time is done in tasks."""
        if isinstance(message, Trigger):
            self._trigger(message)
        elif isinstance(message, CancelRun):
            for trigger, batch in tuple(self._batches.values()):
                if batch is not None and message.run_id in (trigger.run_id, trigger.req_id):
                    self._in_task(batch.stop())
        elif isinstance(message, LlmToolState):
            self.context.tools.set_state(message)
        elif isinstance(message, Freeze):
            self._in_task(self._freeze(message))
        elif isinstance(message, Unfreeze):
            self._in_task(self._unfreeze(message.req_id))
        elif isinstance(message, ConfigUpdate):
            self._in_task(self._change_config(message))

    async def stop(self, *, reason: StopReason = "stop", drain: float = 0.0, grace: float = 5.0) -> None:
        """Take no more calls, give those under way ``drain`` seconds, run the hooks within ``grace`` seconds. Does not raise."""
        self._refusing = "is stopping"
        await self._drain(drain)
        try:
            await _within(grace, self._shutdown(reason))
        except _TooSlowError:
            _logger.warning("The shutdown of plugin %r took longer than %g s", self.context.plugin_id, grace)
        except Exception:  # the plugin's own; it is the end in any case
            _logger.exception("The shutdown of plugin %r failed", self.context.plugin_id)
        if tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCEL_GRACE)

    async def _drain(self, seconds: float) -> None:
        """Give the calls under way so many seconds, and stop those that have not ended then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        await asyncio.gather(*(batch.stop() for _, batch in tuple(self._batches.values()) if batch is not None))

    async def _shutdown(self, reason: StopReason) -> None:
        try:
            if reason == "reload":
                await self._run_hook("reload")
        finally:
            await self._run_hook("shutdown", reason=reason)

    async def _startup(self, reason: StartReason) -> None:
        startup_task.set(asyncio.current_task())
        await self._run_hook("startup", reason=reason)

    async def _run_hook(self, id_: str, **about: Any) -> Any:
        """Run a hook if there is one; one at a time."""
        name = self._hooks.get(id_)
        if name is None:
            return None
        async with self._turn:
            return await call_hook(getattr(self.plugin, name), **about)

    async def _freeze(self, message: Freeze) -> None:
        self._refusing = self._refusing or "is frozen"
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
            sections = self._sections(message.config)
        except (ConfigurationError, OSError) as error:
            self._answer(message.req_id, "config_change", envelope.body_of_failure("config_change", error))
            return
        config.replace(sections)
        if config.snapshot() == previous.snapshot():
            self._answer(message.req_id, "config_change", envelope.body_of(None))
            return
        await self._answer_with_hook(message.req_id, "config_change", config=config, previous=previous)

    async def _answer_with_hook(self, req_id: str, id_: str, **about: Any) -> bool:
        try:
            body = envelope.body_of(await self._run_hook(id_, **about))
        except Exception as error:  # the plugin's own, and told to whoever asked
            _logger.exception("The %s hook of plugin %r failed", id_, self.context.plugin_id)
            body = envelope.body_of_failure(id_, error)
        self._answer(req_id, id_, body)
        return body.error is None

    def _trigger(self, trigger: Trigger) -> None:
        if trigger.req_id in self._batches:
            _logger.error("The request %r came twice; it is carried out once", trigger.req_id)
            return
        name = trigger.entry_id.removeprefix(ENTRY_PREFIX)
        tool = self.context.tools.tools.get(name)
        if self._refusing:
            self._answer(trigger.req_id, name, envelope.not_running(self.context.plugin_id, why=self._refusing), ran=False)
            return
        if tool is None:
            self._answer(trigger.req_id, name, envelope.not_registered(self.context.plugin_id, name), ran=False)
            return
        asked = trigger.timeout
        promised = tool.limit if asked is None or not asked > 0 else min(asked, tool.limit)
        call = _Call(trigger.call_id or trigger.req_id, name, trigger.args, req_id=trigger.req_id, promised=promised)
        self._batches[trigger.req_id] = (trigger, None)
        self._idle.clear()
        run = self._executor.begin(
            surroundings=Surroundings(idempotency_key=trigger.idempotency_key),
            tool_timeout=tool_deadline(promised),
            on_settled=self._settled,
        )
        run.use({name: tool})
        batch = run.start([call])
        if trigger.req_id in self._batches:  # else it has failed already
            self._batches[trigger.req_id] = (trigger, batch)

    def _settled(self, execution: ToolExecution) -> None:
        call = execution.call
        assert isinstance(call, _Call)
        del self._batches[call.req_id]
        if not self._batches:
            self._idle.set()
        self._answer(call.req_id, call.name, _body(call, execution), ran=execution.ran != "no")

    def _answer(self, req_id: str, name: str, body: Body, *, ran: bool = True) -> None:
        data = body.encode()
        if len(data) > MAX_FRAME_BYTES - _ROOM:
            body = envelope.too_large(name, len(data), MAX_FRAME_BYTES - _ROOM)
            data = body.encode()
        error = None if body.error is None else body.error[:_SHOWN]
        self._send(Result(req_id=req_id, success=error is None, data=data, error=error, ran=ran))

    def _progress(self, call: ToolCall, progress: ToolProgress) -> None:
        assert isinstance(call, _Call)
        message = None if progress.message is None else well_formed(str(progress.message))
        data = None if progress.data is None else envelope.as_json(progress.data)
        self._offer(Progress(req_id=call.req_id, message=message, fraction=progress.fraction, data=data))

    def _sections(self, config: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if config is not None:
            return config
        folder = self.context.folder
        return read_manifest(folder).config if folder is not None and (folder / FILE_NAME).is_file() else {}

    def _in_task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _TooSlowError(Exception):
    """A hook was not done in time."""


async def _within(seconds: float, hook: Coroutine[Any, Any, T]) -> T:
    """Run a hook of the plugin's. Raises _TooSlowError when its time is up, also where it ignores its cancellation."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(hook)
    until = loop.time() + seconds
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            result = task.result()
            if loop.time() > until:  # it has blocked the loop beyond its time, and nothing could stop it
                raise _TooSlowError
            return result
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_GRACE)
        raise _TooSlowError
    finally:
        task.cancel()
        task.add_done_callback(_look_at)


def _look_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # so that asyncio does not report it as never retrieved


def _body(call: _Call, execution: ToolExecution) -> Body:
    if isinstance(execution.value, Body):
        return execution.value
    error = execution.error
    if isinstance(error, asyncio.CancelledError):
        return envelope.cancelled(call.name, ran="no" if execution.ran == "no" else "unknown")
    if isinstance(error, ToolTimeoutError):
        return envelope.timed_out(call.name, call.promised)
    return envelope.body_of_failure(call.name, error or PluginError("it gave nothing"), ran=execution.ran)


START_SECONDS = 30.0
"""How long the host has to take the connection and to say START."""

DELIVERY_SECONDS = 2.0
"""How long the last messages have to arrive."""

EXIT_SECONDS = 2.0
"""How long the interpreter has to end, once the plugin has."""

_logger = logging.getLogger(__name__)


def main() -> int:
    """Run the plugin that the host on standard input names, and return the exit code."""
    try:
        bootstrap = read_bootstrap(0)
    except PluginError as error:
        print(error, file=sys.stderr)  # noqa: T201  (whoever started this by hand reads it)
        return 2
    watch_fd = _take_stdin()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)  # type: ignore[union-attr]
    return asyncio.run(_run(bootstrap, watch_fd))


async def _run(bootstrap: Bootstrap, watch_fd: int) -> int:
    return await _Child(bootstrap, watch_fd).run()


def _take_stdin() -> int:
    """Keep the host's pipe for ourselves: what the plugin reads, or hands on to processes of its own, is empty."""
    fd = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return fd


class _Child:
    """The process's one connection, and the plugin behind it."""

    def __init__(self, bootstrap: Bootstrap, watch_fd: int) -> None:
        self._bootstrap = bootstrap
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._watch = ParentWatchdog(watch_fd, self._host_is_gone)
        self._connection = Connection(self._receive, self._closed)
        self._start: asyncio.Future[Start] = self._loop.create_future()
        self._end: asyncio.Future[Stop | None] = self._loop.create_future()
        self._runtime: PluginRuntime | None = None

    async def run(self) -> int:
        """Live until the end, and return the exit code."""
        self._watch.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows
                self._loop.add_signal_handler(number, self._finish, Stop())
        code = await self._live()
        end_within(EXIT_SECONDS, code)
        return code

    async def _live(self) -> int:
        if not await self._connect():
            return GONE_CODE
        start = self._start.result()
        logging.basicConfig(handlers=[HostHandler(self._offer_log)], level=start.log_level, force=True)
        self._watch.grace = start.grace + DELIVERY_SECONDS
        runtime = self._load(start)
        if runtime is None:
            return await self._leave(1)
        starting = self._loop.create_task(runtime.start(reason=start.reason, within=start.startup_timeout))
        await _first(starting, self._end)
        code = 0
        if starting.done():
            self.send(starting.result())
            if starting.result().status == "ready" or start.startup_failure != "fail":
                runtime.open()
                await self._end
            else:
                code = 1
        else:
            starting.cancel()
        stop = self._end.result() if self._end.done() else Stop(grace=start.grace)
        if stop is None:
            _logger.warning("The host is gone")
            stop, code = Stop(grace=start.grace), GONE_CODE
            atexit.register(end_group)
        await runtime.stop(reason=stop.reason, drain=stop.drain, grace=stop.grace)
        return await self._leave(code)

    async def _connect(self) -> bool:
        """Connect, show the token, and wait for START; False if there is no host."""
        path = self._bootstrap.path
        try:
            async with asyncio.timeout(START_SECONDS):
                if path is not None:
                    await self._loop.create_unix_connection(lambda: self._connection, path)
                else:
                    await self._loop.create_connection(lambda: self._connection, *self._bootstrap.host_and_port)
                self.send(Hello(version=PROTOCOL_VERSION, token=self._bootstrap.token, pid=os.getpid()))
                await _first(self._start, self._end)
        except OSError as error:  # TimeoutError too
            print(f"The plugin host cannot be reached: {describe(error)}", file=sys.stderr)  # noqa: T201
        return self._start.done()

    def _load(self, start: Start) -> PluginRuntime | None:
        """Import and make the plugin; what goes wrong is the end, and the host is told."""
        folder = Path(start.folder) if start.folder else None
        try:
            runtime = PluginRuntime(
                load_class(start.entry, folder),
                plugin_id=start.plugin_id,
                send=self.send,
                offer=self._connection_offer,
                folder=folder,
                config=start.config,
            )
            runtime.make()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (the plugin's own code, which may do anything)
            self.send(crash_of(error, folder))
            return None
        self._runtime = runtime
        return runtime

    async def _leave(self, code: int) -> int:
        """Let what was said arrive, and close."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_SECONDS):
                await self._connection.delivered()
        self._connection.close()
        return code

    def send(self, message: Message) -> None:
        """Send a message, from any thread."""
        if threading.get_ident() == self._thread:
            self._connection.send(message)
        else:
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._connection.send, message)

    def _connection_offer(self, message: Message) -> bool:
        if threading.get_ident() == self._thread:
            return self._connection.offer(message)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._connection.offer, message)
        return True

    def _offer_log(self, message: Log) -> bool | None:
        return None if self._connection.is_closed else self._connection_offer(message)

    def _receive(self, message: Message) -> None:
        if isinstance(message, Start):
            if not self._start.done():
                self._start.set_result(message)
        elif isinstance(message, Stop):
            self._finish(message)
        elif self._runtime is not None:
            self._runtime.receive(message)
        elif not isinstance(message, Ping):
            _logger.warning("A %s came before the plugin was there", type(message).__name__)

    def _finish(self, stop: Stop | None) -> None:
        if not self._end.done():
            self._end.set_result(stop)

    def _closed(self, error: Exception | None) -> None:
        if error is not None:
            _logger.error("The connection to the host failed: %s", error)
        self._finish(None)

    def _host_is_gone(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish, None)


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


if __name__ == "__main__":
    sys.exit(main())
