"""The ``hooks`` of a configuration: the seed's keys (spec/hooks.md, section 1) and ours.

A mistake is always an error, even for a hook that is not required: an approver left out because of a typing error would let
everything through. Disabled entries are not checked. Unknown keys are ignored, with a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

from patchbay.errors import ConfigurationError
from patchbay.hooks.config.reader import Table, check_root, policy_in, read_config, wrong
from patchbay.hooks.process.child import ProcessLimits, ProcessSpec
from patchbay.hooks.process.protocol import parse_kinds
from patchbay.hooks.types import HookPolicy, HookTimeouts, RespondApproval, ToolInjection

INTERCEPTS: Final[Mapping[str, str]] = {
    "before_llm": "llm",
    "after_llm": "llm",
    "before_tool": "tool",
    "after_tool": "tool",
    "approve_tool": "approve",
}
"""The values of ``intercept`` and their modes; a process gets both methods of a mode."""

_HOOKS: Final = frozenset({"enabled", "defaults", "builtins", "processes", "policy"})
_DEFAULTS: Final = frozenset({"observer_timeout_ms", "interceptor_timeout_ms", "approval_timeout_ms", "tool_timeout_ms"})
_POLICY: Final = frozenset({"tool_injection", "respond_approval", "protected", "edit_system"})
_OWN_TIMES: Final = frozenset({"observer_timeout_ms", "timeout_ms", "tool_timeout_ms", "approval_timeout_ms"})
_BUILTIN: Final = frozenset({"enabled", "priority", "required", "fail_closed", "tools", "config", *_OWN_TIMES})
_PROCESS: Final = frozenset(
    {
        "enabled", "priority", "required", "fail_closed", "transport", "command", "dir", "env", "inherit_env", "observe",
        "intercept", "tools", "strict", "flat_context", "max_line_bytes", "hello_timeout_ms", "restart", "max_restarts",
        *_OWN_TIMES,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """A process to mount. A ``required`` one must start, or nothing does.

    That is the default for approvers, and a must for what fails closed.
    """

    spec: ProcessSpec
    priority: int = 0
    required: bool = False
    tools: tuple[str, ...] = ()
    timeouts: HookTimeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinSpec:
    """A built-in hook to mount, as its factory gets it. ``config`` is whatever the file has.

    ``fail_closed`` None leaves it to the hook (``HookManager.mount``).
    """

    name: str
    config: Any = field(default=None, repr=False)  # it may hold secrets
    priority: int = 0
    required: bool = True
    fail_closed: bool | None = None
    tools: tuple[str, ...] = ()
    timeouts: HookTimeouts


@dataclass(frozen=True, slots=True, kw_only=True)
class HooksConfig:
    """The hooks of a configuration. ``disabled`` has only names; ``notes`` are for the author of the file."""

    enabled: bool = True
    timeouts: HookTimeouts
    policy: HookPolicy
    builtins: tuple[BuiltinSpec, ...] = ()
    processes: tuple[ProcessSettings, ...] = ()
    disabled: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def parse_hooks_config(config: Any) -> HooksConfig:
    """Read the ``hooks`` of a configuration in the form of JSON data. Raises ConfigurationError."""
    check_root(config)
    hooks = Table(config, "").table("hooks")
    notes = [*hooks.unknown(_HOOKS)]
    timeouts = _default_timeouts(hooks.table("defaults"), notes)
    policy = _policy(hooks.table("policy"), notes)
    sections = [hooks.tables(section) for section in ("builtins", "processes")]
    disabled = [name for section in sections for name, entry in section if not entry.flag("enabled", default=False)]
    builtins = [
        _builtin(name, entry, timeouts, notes) for name, entry in hooks.tables("builtins") if entry.flag("enabled", default=False)
    ]
    processes = [
        _process(name, entry, timeouts, notes)
        for name, entry in hooks.tables("processes")
        if entry.flag("enabled", default=False)
    ]
    if both := {each.name for each in builtins} & {each.spec.name for each in processes}:
        raise ConfigurationError(f"hooks.builtins and hooks.processes both have the name {min(both)!r}.")
    return HooksConfig(
        enabled=hooks.flag("enabled", default=True),
        timeouts=timeouts,
        policy=policy,
        builtins=tuple(builtins),
        processes=tuple(processes),
        disabled=tuple(disabled),
        notes=tuple(notes),
    )


def read_hooks_config(path: str | Path) -> HooksConfig:
    """Read the ``hooks`` of a configuration file. Raises ConfigurationError, with the file's name."""
    found = read_config(path)
    with _named(path):
        return parse_hooks_config(found)


def read_server_config(path: str | Path) -> tuple[HooksConfig, Any]:
    """Read a server's file: its ``hooks``, and its approvals as data. Raises ConfigurationError with the file's name.

    The approvals are its ``approvals``, or all of a file that is only a policy.
    """
    found = read_config(path)
    with _named(path):
        return parse_hooks_config(found), policy_in(found)


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _default_timeouts(table: Table, notes: list[str]) -> HookTimeouts:
    notes += table.unknown(_DEFAULTS)
    built_in = HookTimeouts()
    tool = table.seconds("tool_timeout_ms", 0)
    return HookTimeouts(
        observer=table.seconds("observer_timeout_ms", built_in.observer),
        interceptor=table.seconds("interceptor_timeout_ms", built_in.interceptor),
        approval=table.seconds("approval_timeout_ms", built_in.approval),
        tool=tool or None,
    )


def _own_timeouts(table: Table, defaults: HookTimeouts) -> HookTimeouts:
    return replace(
        defaults,
        observer=table.seconds("observer_timeout_ms", defaults.observer),
        interceptor=table.seconds("timeout_ms", defaults.interceptor),
        approval=table.seconds("approval_timeout_ms", defaults.approval),
        tool=table.seconds("tool_timeout_ms", defaults.tool or 0) or None,
    )


def _policy(table: Table, notes: list[str]) -> HookPolicy:
    notes += table.unknown(_POLICY)
    default = HookPolicy()
    return HookPolicy(
        tool_injection=_one_of(table, "tool_injection", get_args(ToolInjection), default.tool_injection),
        respond_approval=(
            None if table.get("respond_approval") is None else _one_of(table, "respond_approval", get_args(RespondApproval), "")
        ),
        protected=frozenset(table.texts("protected") or ()),
        edit_system=table.flag("edit_system", default=default.edit_system),
    )


def _one_of(table: Table, key: str, values: tuple[str, ...], default: str) -> Any:
    value = table.text(key, default)
    if value not in values:
        raise wrong(table.at(key), f"one of {', '.join(values)}", value)
    return value


def _builtin(name: str, table: Table, defaults: HookTimeouts, notes: list[str]) -> BuiltinSpec:
    notes += table.unknown(_BUILTIN)
    return BuiltinSpec(
        name=name,
        config=table.get("config"),
        priority=table.whole("priority", 0),
        required=_required(table, default=True),
        fail_closed=table.flag("fail_closed", default=False) if table.get("fail_closed") is not None else None,
        tools=_tools(table),
        timeouts=_own_timeouts(table, defaults),
    )


def _process(name: str, table: Table, defaults: HookTimeouts, notes: list[str]) -> ProcessSettings:
    notes += table.unknown(_PROCESS)
    if not name.strip():
        raise ConfigurationError(f"{table.path}: a hook needs a name.")
    transport = table.text("transport") or "stdio"
    if transport != "stdio":
        raise ConfigurationError(f'{table.at("transport")}: unsupported transport "{transport}"; there is stdio.')
    command = table.texts("command")
    if not command or not command[0].strip() or any("\0" in part for part in command):
        raise ConfigurationError(f"{table.at('command')}: command is required, as a list: the program and its arguments.")
    observe = table.texts("observe") or ()
    modes = {_mode(entry, table) for entry in table.texts("intercept") or () if entry}
    modes |= {"observe"} if observe else set()
    if not modes:
        raise ConfigurationError(f"{table.path}: no hook modes enabled; name some in intercept or observe.")
    if table.get("tools") is not None and modes.isdisjoint({"tool", "approve"}):
        raise ConfigurationError(f"{table.at('tools')}: the hook is asked about no calls; name before_tool in intercept.")
    limits = ProcessLimits()
    limits = replace(
        limits,
        line=_at_least(table, "max_line_bytes", limits.line, 1024),
        hello=table.seconds("hello_timeout_ms", limits.hello),
        restarts=_at_least(table, "max_restarts", limits.restarts, 0) if table.flag("restart", default=True) else 0,
    )
    return ProcessSettings(
        spec=ProcessSpec(
            name=name,
            command=command,
            folder=_folder(table),
            env=_environment(table),
            inherit=table.texts("inherit_env"),
            modes=frozenset(modes),
            kinds=parse_kinds(observe, table.at("observe")),
            fail_closed=table.flag("fail_closed", default=False),
            strict=table.flag("strict", default=False),
            flat_context=table.flag("flat_context", default=False),
            limits=limits,
        ),
        priority=table.whole("priority", 0),
        required=_required(table, default="approve" in modes),
        tools=_tools(table),
        timeouts=_own_timeouts(table, defaults),
    )


def _required(table: Table, *, default: bool) -> bool:
    fails_closed = table.flag("fail_closed", default=False)
    required = table.flag("required", default=default or fails_closed)
    if fails_closed and not required:
        raise ConfigurationError(
            f"{table.path}: fail_closed and required = false do not go together: one left out holds nothing."
        )
    return required


def _tools(table: Table) -> tuple[str, ...]:
    patterns = table.texts("tools")
    if patterns is not None and not (patterns and all(patterns)):
        raise ConfigurationError(f"{table.at('tools')} must name tools, or patterns of their names; leave it out for all.")
    return patterns or ()


def _folder(table: Table) -> Path | None:
    given = table.text("dir")
    try:
        return Path(given).expanduser() if given else None
    except RuntimeError:  # "~somebody"
        raise ConfigurationError(f"{table.at('dir')}: there is no home folder for {given!r}.") from None


def _environment(table: Table) -> dict[str, str]:
    env = table.pairs("env")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigurationError(f"{table.at('env')}: no variable of an environment can be named or hold what {name!r} does.")
    return env


def _mode(entry: str, table: Table) -> str:
    if entry not in INTERCEPTS:
        raise ConfigurationError(f'{table.at("intercept")}: unsupported intercept "{entry}"; there are {", ".join(INTERCEPTS)}.')
    return INTERCEPTS[entry]


def _at_least(table: Table, key: str, default: int, least: int) -> int:
    value = table.whole(key, default)
    if value < least:
        raise wrong(table.at(key), f"at least {least}", value)
    return value
