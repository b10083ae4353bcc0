"""What a plugin's process and its host say to each other, as typed structs.

What lives here: the messages and their fields. What does not: how they travel (``frames``, ``connection``), and what becomes of
them (``runtime`` on the plugin's side, the host on the other).

Their names on the wire (``type``) are those of the seeds' host where it has the message. What is JSON for others travels as JSON
text (``Trigger.args``, ``Result.data``): neither side reads what it only hands on, and no number loses a digit.

    plugin -> host   HELLO, STARTUP_RESULT, LLM_TOOL_REGISTER, LLM_TOOL_UNREGISTER, PROGRESS, RESULT, LOG, CRASH
    host -> plugin   START, TRIGGER, CANCEL_RUN, LLM_TOOL_STATE, FREEZE, UNFREEZE, CONFIG_UPDATE, PING, STOP
    both             ACK
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

PROTOCOL_VERSION: Final = 1
"""Says which messages there are. Host and plugin must be of the same one: both come from one installation."""

ENTRY_PREFIX: Final = "__llm_tool__"
"""A tool ``name`` is triggered as the entry ``__llm_tool__name``."""

STARTUP_ID: Final = "__plugin_startup__"
"""The ``req_id`` of the startup's result."""

ToolStateName: TypeAlias = Literal["pending", "active", "refused", "stale"]
"""``pending``: not registered yet. ``active``: a model can call it. ``refused``: the server will not have it. ``stale``: it was
active, and the server has lost it; the host is registering it again."""

StopReason: TypeAlias = Literal["stop", "reload"]
StartReason: TypeAlias = Literal["start", "restart", "reload"]


class _Message(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """One message. Fields that are not known are passed over."""


class Ack(_Message, frozen=True, tag="ACK"):
    """All messages up to the one with this ``id`` have arrived. It has no id of its own (0), and is not acknowledged."""

    id: int


class Hello(_Message, frozen=True, tag="HELLO"):
    """The plugin's first message. The host must compare ``token`` in constant time, and take it once."""

    version: int
    token: str
    pid: int


class Start(_Message, frozen=True, tag="START"):
    """The host's answer to HELLO: which plugin to run.

    ``entry`` is ``module:Class`` in ``folder`` ("" for the import path alone). ``config`` stands for the folder's ``plugin.toml``
    (None: that is read). ``reason`` is handed to the startup hook, which has ``startup_timeout`` seconds; after a startup that
    failed the tools are registered all the same unless ``startup_failure`` is "fail": then the process ends. ``grace`` is how
    many seconds the plugin has to end in when the host is gone.
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
    """How the startup hook ended; the tools are registered after this. ``hooks`` are the lifecycle ids that the plugin has."""

    status: Literal["ready", "failed"]
    startup_error: str | None = None
    hooks: tuple[str, ...] = ()
    req_id: str = STARTUP_ID


class LlmToolRegister(_Message, frozen=True, tag="LLM_TOOL_REGISTER"):
    """A tool that models may call from now on. ``registration`` tells it from an earlier one of the same name."""

    plugin_id: str
    name: str
    description: str
    parameters: dict[str, Any]
    timeout_seconds: float
    role: str | None = None
    annotations: dict[str, bool] = {}
    registration: int = 0


class LlmToolUnregister(_Message, frozen=True, tag="LLM_TOOL_UNREGISTER"):
    """The tool is no more."""

    plugin_id: str
    name: str
    role: str | None = None
    registration: int = 0


class LlmToolState(_Message, frozen=True, tag="LLM_TOOL_STATE"):
    """What became of a registration, each time it changes; ``reason`` says why, where the server gave one."""

    name: str
    state: ToolStateName
    reason: str = ""
    registration: int = 0


class Trigger(_Message, frozen=True, tag="TRIGGER"):
    """Carry out one call. It is answered by one RESULT, whatever happens, as long as the process lives.

    ``args`` is the JSON text of the arguments. ``timeout`` is the limit in seconds that the caller was promised (None: the
    tool's own); the plugin ends the tool a little earlier (``deadlines``), and never later than the tool's own limit.
    ``run_id`` is for CANCEL_RUN, ``call_id`` and ``idempotency_key`` are for the tool: given again, they say it is the same call.
    """

    req_id: str
    entry_id: str
    args: str = "{}"
    timeout: float | None = None
    run_id: str = ""
    call_id: str = ""
    idempotency_key: str = ""


class Progress(_Message, frozen=True, tag="PROGRESS"):
    """What a running tool says of its work; dropped where the host is slow to read. ``data`` is JSON text."""

    req_id: str
    message: str | None = None
    fraction: float | None = None
    data: str | None = None


class Result(_Message, frozen=True, tag="RESULT"):
    """The one answer to a TRIGGER, FREEZE, UNFREEZE or CONFIG_UPDATE.

    ``data`` is JSON text: for a TRIGGER the whole body of the callback's answer (``envelope``), to be sent on unread. ``error``
    is the short name of what went wrong, None where ``success``. ``ran`` is False where no handler was reached: the same call
    may be carried out when it comes again.
    """

    req_id: str
    success: bool
    data: bytes = b""
    error: str | None = None
    ran: bool = True


class CancelRun(_Message, frozen=True, tag="CANCEL_RUN"):
    """Stop the calls whose ``run_id`` or ``req_id`` this is. They are answered, as cancelled."""

    run_id: str


class Freeze(_Message, frozen=True, tag="FREEZE"):
    """Refuse calls until UNFREEZE; give those under way ``drain`` seconds (None: let them be); then run the freeze hook."""

    req_id: str
    drain: float | None = None


class Unfreeze(_Message, frozen=True, tag="UNFREEZE"):
    """Run the unfreeze hook; calls are taken again."""

    req_id: str


class ConfigUpdate(_Message, frozen=True, tag="CONFIG_UPDATE"):
    """The configuration is ``config`` now (None: as ``plugin.toml`` says now); if that is new, the config_change hook is run."""

    req_id: str
    config: dict[str, Any] | None = None


class Ping(_Message, frozen=True, tag="PING"):
    """Nothing but something to acknowledge: a plugin that does not is blocked."""


class Stop(_Message, frozen=True, tag="STOP"):
    """End: calls under way have ``drain`` seconds to end by themselves, the hooks after that ``grace`` seconds together."""

    reason: StopReason = "stop"
    drain: float = 0.0
    grace: float = 5.0


class Log(_Message, frozen=True, tag="LOG"):
    """One record of the plugin's ``logging``. Dropped where the host is slow to read; ``dropped`` says how many were."""

    level: int
    logger: str
    message: str
    created: float
    dropped: int = 0


class Crash(_Message, frozen=True, tag="CRASH"):
    """The plugin could not be loaded, or its process ends by a mistake; the last message.

    ``lasts``: it will be so as long as the plugin's files are as they are, so it is of no use to start it again.
    """

    error: str
    traceback: str = ""
    lasts: bool = False


FromPlugin: TypeAlias = Ack | Hello | StartupResult | LlmToolRegister | LlmToolUnregister | Progress | Result | Log | Crash
FromHost: TypeAlias = Ack | Start | Trigger | CancelRun | LlmToolState | Freeze | Unfreeze | ConfigUpdate | Ping | Stop
Message: TypeAlias = FromPlugin | FromHost
