"""The ``hooks`` of a configuration: PicoClaw's keys and further ones.

A mistake is always an error, even for a hook that is not required: an approver left out because of a typing error would let
everything through. Disabled entries are not checked. Unknown keys are ignored, with a note.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

from patchbay._config import Table, read_config, wrong
from patchbay.errors import ConfigurationError
from patchbay.hooks.process.child import ProcessLimits, ProcessSpec
from patchbay.hooks.process.protocol import METHODS_OF, MODES, parse_kinds
from patchbay.hooks.types import HookPolicy, HookTimeouts, RespondApproval, ToolInjection

INTERCEPTS: Final = {method: mode for mode in MODES if mode != "observe" for method in METHODS_OF[mode]}
"""The values of ``intercept`` and their modes; a process gets both methods of a mode."""

HOOKS: Final = "hooks"
APPROVALS: Final = "approvals"
MCP_SERVERS: Final = "mcpServers"
"""The part of a server's file that ``patchbay.mcp`` reads."""

_NEAR: Final[Mapping[str, float]] = {HOOKS: 0.85, APPROVALS: 0.75}
"""Similarity from which another key counts as misspelled: ``hook``, ``approval``, ``Approvals``, ``approvers``."""

POLICY_KEYS: Final = frozenset({"rules", "default", "deadline", "at_deadline", "who", "respond_approval", "protected"})
"""Root keys of a file that is only an approval policy."""

_HOOKS_KEYS: Final = frozenset({"processes", "builtins", "policy"})


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

    @property
    def name(self) -> str:
        """The hook's name."""
        return self.spec.name


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinSpec:
    """A built-in hook to mount, as its factory gets it. ``config`` is the value in the file, unchecked.

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
    _check_root(config)
    hooks = Table(config, "").table("hooks")
    defaults, policy = hooks.table("defaults"), hooks.table("policy")
    timeouts = _timeouts(defaults, HookTimeouts(), "interceptor_timeout_ms")
    hook_policy = _policy(policy)
    notes = [*defaults.unknown(), *policy.unknown()]
    builtins: list[BuiltinSpec] = []
    processes: list[ProcessSettings] = []
    disabled: list[str] = []
    for name, entry in hooks.tables("builtins"):
        if entry.flag("enabled", default=False):
            builtins.append(_builtin(name, entry, timeouts))
            notes += entry.unknown()
        else:
            disabled.append(name)
    for name, entry in hooks.tables("processes"):
        if entry.flag("enabled", default=False):
            processes.append(_process(name, entry, timeouts))
            notes += entry.unknown()
        else:
            disabled.append(name)
    if both := {each.name for each in builtins} & {each.name for each in processes}:
        raise ConfigurationError(f"hooks.builtins and hooks.processes both have the name {min(both)!r}.")
    return HooksConfig(
        enabled=hooks.flag("enabled", default=True),
        timeouts=timeouts,
        policy=hook_policy,
        builtins=tuple(builtins),
        processes=tuple(processes),
        disabled=tuple(disabled),
        notes=(*hooks.unknown(), *notes),
    )


def read_hooks_config(path: str | Path) -> HooksConfig:
    """Read the ``hooks`` of a configuration file. Raises ConfigurationError, with the file's name."""
    found = read_config(path)
    with _with_file_name(path):
        return parse_hooks_config(found)


def read_server_config(path: str | Path) -> tuple[HooksConfig, Any]:
    """Read a server's file: its ``hooks``, and its approvals as data. Raises ConfigurationError with the file's name.

    The approvals are its ``approvals``, or all of a file that is only a policy.
    """
    found = read_config(path)
    with _with_file_name(path):
        return parse_hooks_config(found), _policy_in(found)


def _check_root(found: Any) -> None:
    """Raise ConfigurationError for a root key that resembles ``hooks`` or ``approvals``.

    The file may belong to another program too, so other keys are ignored. But a misspelled ``hooks`` or ``approvals`` would
    silently let everything through.
    """
    if not isinstance(found, Mapping):
        return
    is_nested = HOOKS in found or APPROVALS in found
    for key in found:
        if not isinstance(key, str) or key in _NEAR:
            continue
        for known, likeness in _NEAR.items():
            if difflib.SequenceMatcher(None, key.strip().lower(), known).ratio() >= likeness:
                raise ConfigurationError(
                    f"unknown key {key}: did you mean {known}? A key of another program needs a less similar name."
                )
        if is_nested and (key in POLICY_KEYS or key in _HOOKS_KEYS):
            place = APPROVALS if key in POLICY_KEYS else HOOKS
            raise ConfigurationError(f"{key} stands beside 'hooks' or 'approvals', where it has no effect: write {place}.{key}.")


def _policy_in(found: Any) -> Any:
    """Return the approval policy in a configuration: its ``approvals``, or all of a file that is only a policy.

    Raises ConfigurationError for a file without any known key.
    """
    if not isinstance(found, Mapping) or not found:
        return found
    if APPROVALS in found:
        return found[APPROVALS]
    if HOOKS in found or MCP_SERVERS in found:
        return {}
    if POLICY_KEYS.isdisjoint(found):
        raise ConfigurationError("there is neither 'hooks' nor 'approvals' in it: nothing would be governed.")
    return found


@contextmanager
def _with_file_name(path: str | Path) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _timeouts(table: Table, defaults: HookTimeouts, interceptor: str = "timeout_ms") -> HookTimeouts:
    return HookTimeouts(
        observer=table.seconds("observer_timeout_ms", defaults.observer),
        interceptor=table.seconds(interceptor, defaults.interceptor),
        approval=table.seconds("approval_timeout_ms", defaults.approval),
        tool=table.seconds("tool_timeout_ms", defaults.tool or 0) or None,
    )


def _policy(table: Table) -> HookPolicy:
    default = HookPolicy()
    respond = table.get("respond_approval")
    return HookPolicy(
        tool_injection=table.one_of("tool_injection", get_args(ToolInjection), default.tool_injection),
        respond_approval=None if respond is None else table.one_of("respond_approval", get_args(RespondApproval)),
        protected=frozenset(table.texts("protected") or ()),
        edit_system=table.flag("edit_system", default=default.edit_system),
    )


def _builtin(name: str, table: Table, defaults: HookTimeouts) -> BuiltinSpec:
    return BuiltinSpec(
        name=name,
        config=table.get("config"),
        fail_closed=table.flag("fail_closed", default=False) if table.get("fail_closed") is not None else None,
        **_common(table, defaults, required=True),
    )


def _common(table: Table, defaults: HookTimeouts, *, required: bool) -> dict[str, Any]:
    """Return the settings that built-in hooks and processes share; ``required`` is the default of that."""
    return {
        "priority": table.whole("priority", 0),
        "required": _required(table, default=required),
        "tools": _tools(table),
        "timeouts": _timeouts(table, defaults),
    }


def _process(name: str, table: Table, defaults: HookTimeouts) -> ProcessSettings:
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
        restarts=_at_least(table, "max_restarts", limits.restarts, 0) * table.flag("restart", default=True),
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
        **_common(table, defaults, required="approve" in modes),
    )


def _required(table: Table, *, default: bool) -> bool:
    fails_closed = table.flag("fail_closed", default=False)
    required = table.flag("required", default=default or fails_closed)
    if fails_closed and not required:
        raise ConfigurationError(
            f"{table.path}: fail_closed and required = false do not go together: a hook that is left out denies nothing."
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
    except RuntimeError:  # "~unknown-user"
        raise ConfigurationError(f"{table.at('dir')}: there is no home folder for {given!r}.") from None


def _environment(table: Table) -> dict[str, str]:
    env = table.pairs("env")
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ConfigurationError(f"{table.at('env')}: the name or the value of {name!r} is not valid in an environment.")
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
