"""The messages between a plugin worker and its host.

    worker -> host   HELLO, STARTUP_RESULT, LLM_TOOL_REGISTER, LLM_TOOL_UNREGISTER, BEGUN, PROGRESS, RESULT, LOG, PONG, CRASH
    host -> worker   START, TRIGGER, CANCEL_RUN, LLM_TOOL_STATE, FREEZE, UNFREEZE, CONFIG_UPDATE, PING, STOP

``connection`` carries them. Message types have the names of N.E.K.O's host where it has them.
JSON that neither side needs to read (``Trigger.args``, ``Result.data``) travels as text, so that no number loses a digit.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from patchbay.plugins.errors import PluginError

PROTOCOL_VERSION: Final = 2
"""Host and worker must speak the same version: both come from one installation."""

ENTRY_PREFIX: Final = "__llm_tool__"
"""A tool ``name`` is triggered as the entry ``__llm_tool__name``."""

STARTUP_ID: Final = "__plugin_startup__"
"""The ``req_id`` of the startup's result."""


CANCEL_GRACE: Final = 0.2
"""Seconds that a cancelled tool is waited for; less than the gap between the first two deadlines of a call of 5 s or more."""
MAX_TIMEOUT: Final = 300.0
"""The longest timeout of a tool, in seconds."""
DEFAULT_TIMEOUT: Final = 30.0
"""The timeout of a tool that sets none, in seconds."""

_BOOTSTRAP_BYTES: Final = 4096


ToolStateName: TypeAlias = Literal["pending", "active", "refused", "stale"]
"""``pending``: not registered yet. ``active``: a model can call it. ``refused``: the server rejects it. ``stale``: it was active,
the server has lost it, and the host registers it again."""

StopReason: TypeAlias = Literal["stop", "reload"]
StartReason: TypeAlias = Literal["start", "restart", "reload"]


def tool_deadline(timeout: float) -> float:
    """Return after how many seconds the worker stops a tool.

    Three nested deadlines (worker, host, server), so that the innermost reports the timeout and a model gets one error.
    """
    return timeout - min(0.5, timeout / 10)


def host_deadline(timeout: float) -> float:
    """Return after how many seconds the host answers for a worker that has not."""
    return timeout - min(0.25, timeout / 20)


class _Message(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One message. Unknown fields are ignored."""


class Hello(_Message, frozen=True, tag="HELLO"):
    """The worker's first message. The host compares ``token`` in constant time, and accepts it once."""

    version: int
    token: str
    pid: int


class Start(_Message, frozen=True, tag="START"):
    """The host's answer to HELLO: which plugin to run.

    ``entry`` is ``module:Class`` in ``folder`` ("": on the import path). ``config`` replaces the folder's ``plugin.toml`` (None:
    read it). The startup hook gets ``reason`` and ``startup_timeout`` seconds; after a failed startup the tools are registered
    anyway unless ``startup_failure`` is "fail": then the worker exits. ``grace``: seconds to end in when the host is gone.
    """

    plugin_id: str
    entry: str
    folder: str = ""
    config: dict[str, Any] | None = None
    reason: StartReason = "start"
    startup_timeout: float = 10.0
    startup_failure: Literal["warn", "fail", "ignore"] = "warn"
    grace: float = 5.0
    log_level: int = 20


class StartupResult(_Message, frozen=True, tag="STARTUP_RESULT"):
    """The result of the startup hook; tools are registered after it. ``hooks``: the lifecycle ids that the plugin handles."""

    status: Literal["ready", "failed"]
    startup_error: str | None = None
    hooks: tuple[str, ...] = ()
    req_id: str = STARTUP_ID


class LlmToolRegister(_Message, frozen=True, tag="LLM_TOOL_REGISTER"):
    """A tool that models may call from now on. ``registration`` distinguishes it from an earlier one of the same name."""

    plugin_id: str
    name: str
    description: str
    parameters: dict[str, Any]
    timeout_seconds: float
    role: str | None = None
    annotations: dict[str, bool] = {}
    registration: int = 0


class LlmToolUnregister(_Message, frozen=True, tag="LLM_TOOL_UNREGISTER"):
    """The tool is removed."""

    plugin_id: str
    name: str
    role: str | None = None
    registration: int = 0


class LlmToolState(_Message, frozen=True, tag="LLM_TOOL_STATE"):
    """The new state of a registration; ``reason`` as the server gave it."""

    name: str
    state: ToolStateName
    reason: str = ""
    registration: int = 0


class Trigger(_Message, frozen=True, tag="TRIGGER"):
    """Run one call. The worker answers BEGUN before the handler runs, and exactly one RESULT as long as it lives.

    ``args`` is the JSON text of the arguments. ``timeout`` is what the caller was promised in seconds (None: the tool's own); the
    worker stops the tool a little earlier, and never later than the tool's own limit. ``run_id`` is for CANCEL_RUN. ``call_id``
    and ``idempotency_key`` are passed to the tool: the same values mean the same call. ``trace`` has the headers of its trace.
    """

    req_id: str
    entry_id: str
    args: str = "{}"
    timeout: float | None = None
    run_id: str = ""
    call_id: str = ""
    idempotency_key: str = ""
    trace: dict[str, str] = {}


class Begun(_Message, frozen=True, tag="BEGUN"):
    """The call may have begun. A call without one, of a worker whose socket was read to its end, did not run."""

    req_id: str


class Progress(_Message, frozen=True, tag="PROGRESS"):
    """Progress of a running tool; dropped where the host is slow to read. ``data`` is JSON text."""

    req_id: str
    message: str | None = None
    fraction: float | None = None
    data: str | None = None


class Result(_Message, frozen=True, tag="RESULT"):
    """The answer to a TRIGGER, FREEZE, UNFREEZE or CONFIG_UPDATE.

    ``data`` is JSON text: for a TRIGGER the whole body of the callback's answer (``envelope``). ``error`` is the short name of
    what failed, None on success. ``ran`` is False where no handler was reached: the same call may run when it comes again.
    """

    req_id: str
    success: bool
    data: bytes = b""
    error: str | None = None
    ran: bool = True


class CancelRun(_Message, frozen=True, tag="CANCEL_RUN"):
    """Cancel the calls with this ``run_id`` or ``req_id``. They are answered, as cancelled."""

    run_id: str


class Freeze(_Message, frozen=True, tag="FREEZE"):
    """Refuse calls until UNFREEZE, give those in flight ``drain`` seconds (None: let them run), then run the freeze hook."""

    req_id: str
    drain: float | None = None


class Unfreeze(_Message, frozen=True, tag="UNFREEZE"):
    """Run the unfreeze hook; then accept calls again."""

    req_id: str


class ConfigUpdate(_Message, frozen=True, tag="CONFIG_UPDATE"):
    """The configuration is now ``config`` (None: as ``plugin.toml`` says); the config_change hook runs if it differs."""

    req_id: str
    config: dict[str, Any] | None = None


class Ping(_Message, frozen=True, tag="PING"):
    """To be answered by PONG: a worker that does not answer is blocked."""


class Pong(_Message, frozen=True, tag="PONG"):
    """The answer to a PING."""


class Stop(_Message, frozen=True, tag="STOP"):
    """Exit: calls in flight have ``drain`` seconds, then all hooks together ``grace`` seconds."""

    reason: StopReason = "stop"
    drain: float = 0.0
    grace: float = 5.0


class Log(_Message, frozen=True, tag="LOG"):
    """One record of the plugin's ``logging``; dropped where the host is slow to read. ``dropped`` counts those lost before it."""

    level: int
    logger: str
    message: str
    created: float
    dropped: int = 0


class Crash(_Message, frozen=True, tag="CRASH"):
    """The plugin cannot be loaded; the last message. ``lasts``: a restart cannot help as long as its files are as they are."""

    error: str
    traceback: str = ""
    lasts: bool = False


FromWorker: TypeAlias = (
    Hello | StartupResult | LlmToolRegister | LlmToolUnregister | Begun | Progress | Result | Log | Pong | Crash
)
FromHost: TypeAlias = Start | Trigger | CancelRun | LlmToolState | Freeze | Unfreeze | ConfigUpdate | Ping | Stop
Message: TypeAlias = FromWorker | FromHost


class Bootstrap(Struct, frozen=True, kw_only=True):
    """The host's address and token for a worker: one line of JSON on its standard input.

    Not on the command line, which other users can read, nor in the environment, which child processes inherit. ``address`` is
    ``unix:PATH``; HELLO shows ``token``. The pipe stays open: its end tells that the host is gone.
    """

    address: str
    token: str
    version: int = PROTOCOL_VERSION

    def __repr__(self) -> str:
        return f"Bootstrap({self.address!r})"

    @property
    def path(self) -> str:
        """The path of the host's Unix domain socket. Raises PluginError for another address."""
        kind, _, path = self.address.partition(":")
        if kind != "unix":
            raise PluginError(f"{self.address!r} is not the address of a host on this machine.")
        return path

    def line(self) -> bytes:
        """Return the line for the worker's standard input."""
        return msgspec.json.encode(self) + b"\n"


def read_bootstrap(fd: int) -> Bootstrap:
    """Read the line from a file descriptor. Raises PluginError for anything else, and for an end without it."""
    data = b""
    while b"\n" not in data and len(data) < _BOOTSTRAP_BYTES:
        piece = os.read(fd, _BOOTSTRAP_BYTES)
        if not piece:
            break
        data += piece
    try:
        bootstrap = msgspec.json.decode(data.partition(b"\n")[0], type=Bootstrap)
    except msgspec.DecodeError:
        raise PluginError("This process is started by a plugin host, which gives its address on standard input.") from None
    if bootstrap.version != PROTOCOL_VERSION:
        raise PluginError(f"The host speaks version {bootstrap.version} of the protocol, this process {PROTOCOL_VERSION}.")
    return bootstrap


def child_command() -> list[str]:
    """Return the command of a worker. Start it in a new session, its standard input a pipe."""
    return [sys.executable, "-P", "-m", "patchbay.plugins.worker"]
