"""Keeps a hook's process running: starts it, makes sure of it, and starts it again when it ends by itself.

What lives here: when it is started, and when no more. What does not: the process (``child``), and what it is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal

from patchbay.hooks.process.child import HookProcess
from patchbay.hooks.process.errors import HookProcessError
from patchbay.hooks.process.spec import ProcessSpec
from patchbay.legible import legible
from patchbay.valve import Valve

State = Literal["not started", "running", "waiting to be started again", "given up", "closed"]

_logger = logging.getLogger(__name__)


class Supervisor:
    """The processes of one hook, one after the other; ``greet`` says hello to each, and raises HookProcessError if that fails.

    ``state`` says how it is, ``restarts`` how often it was started again.
    """

    def __init__(self, spec: ProcessSpec, greet: Callable[[HookProcess], Awaitable[None]]) -> None:
        self.state: State = "not started"
        self.restarts = 0
        self._spec = spec
        self._greet = greet
        self._process: HookProcess | None = None
        self._latest: HookProcess | None = None
        self._why = "it was not started"
        self._watch: asyncio.Task[None] | None = None
        self._closing = asyncio.Lock()
        name = spec.name
        printed = "The hook %r printed what is no reply: %s"
        self._stray = Valve(lambda text: _logger.warning(printed, name, legible(text)), time.monotonic)
        self._stderr = Valve(lambda text: _logger.warning("[%s] %s", name, legible(text)), time.monotonic)

    @property
    def process(self) -> HookProcess:
        """The process that can be asked. Raises HookProcessError where there is none, with the reason."""
        if self._process is None:
            raise HookProcessError(self._why)
        return self._process

    @property
    def running(self) -> HookProcess | None:
        """The process that can be told something, None where there is none."""
        return self._process if self._process is not None and self._process.end is None else None

    async def start(self) -> None:
        """Start the first process and greet it. Raises HookProcessError where that fails: then it is not tried again."""
        self._refuse_if_closed()
        process = await self._started()
        self._refuse_if_closed()  # who closes it meanwhile closes that process, too
        self._process, self.state = process, "running"
        self._watch = asyncio.get_running_loop().create_task(self._keep_running(process))

    async def aclose(self) -> None:
        """End the process, and do not start it again."""
        self.state, self._why = "closed", "it was closed"
        async with self._closing:  # whoever comes second waits, too
            if self._watch is not None:
                self._watch.cancel()
                await asyncio.wait([self._watch])
            self._process = None
            if self._latest is not None:
                await self._latest.close()
            self._flush()

    def _refuse_if_closed(self) -> None:
        if self.state == "closed":
            raise HookProcessError(self._why)

    async def _started(self) -> HookProcess:
        process = self._latest = HookProcess(self._spec, stray=self._stray.put, stderr=self._stderr.put)
        limit = self._spec.limits.hello
        try:
            await process.start()
            try:
                async with asyncio.timeout(limit):
                    await self._greet(process)
            except TimeoutError:
                raise HookProcessError(f"hook.hello failed: no answer within {limit:g} s") from None
            except HookProcessError as error:
                raise HookProcessError(f"hook.hello failed: {error}") from None
        except HookProcessError as error:
            await process.close()  # by then all that it had to say is there
            said = f" ({legible(process.last_words):.300})" if process.last_words else ""
            raise HookProcessError(f"{error}{said}") from None
        except BaseException:
            await process.close()
            raise
        return process

    async def _keep_running(self, process: HookProcess) -> None:
        """Replace a process when it ends; end it where the event loop ends and nobody has called ``aclose``."""
        try:
            await self._replace_again_and_again(process)
        finally:
            if self.state == "running" and self._latest is not None:
                self.state, self._process = "closed", None
                await self._latest.close()

    async def _replace_again_and_again(self, process: HookProcess) -> None:
        """Wait for the end of a process, and start another one, until that has failed too often."""
        name, limits = self._spec.name, self._spec.limits
        failures, since = 0, time.monotonic()
        while True:
            why = await process.ended()
            self._process, self._why = None, why
            await process.close()
            self._flush()
            if time.monotonic() - since >= limits.healthy_after:
                failures = 0
            replaced: HookProcess | None = None
            while replaced is None:
                failures += 1
                if failures > limits.restarts:
                    self.state = "given up"
                    _logger.error("The hook %r has ended and is not started again: %s", name, why)
                    return
                delay = limits.restart_delay(failures)
                self.state = "waiting to be started again"
                self._why = f"{why}; it is about to be started again"
                _logger.warning("The hook %r has ended: %s; it is started again in %.1f s", name, why, delay)
                await asyncio.sleep(delay)
                try:
                    replaced = await self._started()
                except HookProcessError as error:
                    why = str(error)
            process, since = replaced, time.monotonic()
            self.restarts += 1
            self._process, self.state = process, "running"

    def _flush(self) -> None:
        self._stray.close()
        self._stderr.close()
