"""``patchbay hooks``: list configured hooks, and check a hook process."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchbay._text import escape_controls, plural
from patchbay.cli.options import CONTEXT, Json, command_group
from patchbay.cli.terminal import escape_unencodable, print_json
from patchbay.errors import ConfigurationError

if TYPE_CHECKING:
    from patchbay.hooks.config import HooksConfig
    from patchbay.hooks.process.child import ProcessSpec
    from patchbay.hooks.process.doctor import Verdict


_Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Configuration file: .json, .yaml or .toml.", show_default=False),
]

hooks = command_group("hooks", "List configured hooks; check a hook process.")


@hooks.command("list", context_settings=CONTEXT)
def list_(
    config: _Config = None,
    as_json: Json = False,
) -> None:
    """List a configuration's hooks in order of priority. Nothing is started.

    [bold]Example[/bold]

      patchbay hooks list --config patchbay.yaml
    """  # fmt: skip
    found = _read(config)
    rows = list(_rows(found))
    for note in found.notes:
        print(f"patchbay: {note}", file=sys.stderr)
    if as_json:
        print_json([asdict(row) for row in rows], ensure_ascii=False)
        return
    if not found.enabled:
        print("hooks.enabled is false: no hook runs")
    elif not rows:
        print(f"{config} has no hooks")
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        about = f"priority {row.priority}{', required' if row.required else ''}"
        about += f"; {', '.join(row.modes)}" if row.modes else ""
        about += f"; calls of {', '.join(row.tools)}" if row.tools else ""
        print(f"{row.name:<{width}}  " + (f"{row.kind}  {about}" if row.kind else row.state))
        if row.command:
            print(f"{'':<{width}}  {shlex.join(row.command)}")


@hooks.command(context_settings={**CONTEXT, "allow_interspersed_args": False, "ignore_unknown_options": False})
def doctor(
    target: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...|NAME", help="Command of the hook, or with --config its name.", show_default=False),
    ],
    config: _Config = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Timeout of each response; the first has at least 5.")
    ] = 5.0,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as failures.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Send test requests to a hook process and check its responses. Exit status 1: a check failed.

    Options come before the command. The requests name an unknown tool, so no tool of the hook runs.

    [bold]Examples[/bold]

      patchbay hooks doctor python3 weather_plugin.py

      patchbay hooks doctor --strict --json python3 weather_plugin.py

      patchbay hooks doctor --config patchbay.yaml weather
    """  # fmt: skip
    from patchbay.hooks.process.child import ProcessSpec

    escape_unencodable()
    _check_order(target, config)
    if config is None:
        spec, modes = ProcessSpec(name="doctor", command=tuple(target)), None
    else:
        spec = _process(_read(config), target)
        modes = spec.modes
    try:
        verdicts = asyncio.run(_examine(spec, modes, timeout))
    except asyncio.CancelledError:
        sys.exit(128 + signal.SIGTERM)
    counts = {outcome: sum(each.outcome == outcome for each in verdicts) for outcome in ("ok", "warning", "failure")}
    failed = counts["failure"] + (counts["warning"] if strict else 0) > 0
    if as_json:
        result = {"command": list(spec.command), "verdicts": [asdict(each) for each in verdicts], **counts, "failed": failed}
        print_json(result, ensure_ascii=False)
    else:
        _print(verdicts)
        summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        print(f"{plural(len(verdicts), 'check')}: {summary}")
    sys.exit(1 if failed else 0)


async def _examine(spec: ProcessSpec, modes: frozenset[str] | None, timeout: float) -> list[Verdict]:  # noqa: ASYNC109
    """Check a hook; SIGTERM cancels, as Ctrl-C does, so that the hook's process ends too."""
    from patchbay.hooks.process.doctor import examine

    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await examine(spec, modes=modes, timeout=timeout)


def _print(verdicts: Sequence[Verdict]) -> None:
    width = max(len(each.check) for each in verdicts)
    for each in verdicts:
        words = escape_controls(" ".join(each.words.split()))
        line = f"{each.outcome:<8} {each.check:<{width}}  {words}".rstrip()
        for text in (line, *([f"{'':<8} -> {each.way_out}"] if each.way_out else [])):
            print(text)


def _check_order(target: Sequence[str], config: Path | None) -> None:
    """Warn about our options after the command, which are passed to the hook. Raises ConfigurationError after a name."""
    misplaced = [each for each in target[1:] if each.partition("=")[0] in ("--config", "--timeout", "--strict", "--json")]
    if not misplaced:
        return
    if config is not None:
        raise ConfigurationError(f"{misplaced[0]} must come before the hook's name {target[0]!r}.")
    print(f"patchbay: {', '.join(misplaced)} is passed to the hook: options of doctor come before the command.", file=sys.stderr)


def _read(config: Path | None) -> HooksConfig:
    from patchbay.hooks.config import read_hooks_config

    if config is None:
        raise ConfigurationError("--config FILE is missing.")
    return read_hooks_config(config.expanduser())


def _process(found: HooksConfig, target: Sequence[str]) -> ProcessSpec:
    specs = {each.spec.name: each.spec for each in found.processes}
    if len(target) != 1 or target[0] not in specs:
        names = ", ".join(specs) or "none"
        raise ConfigurationError(f"no enabled process hook is named {' '.join(target)!r}; available: {names}.")
    return specs[target[0]]


@dataclass(frozen=True)
class _Row:
    """A hook in the list. ``kind`` is "builtin" or "process", "" for a disabled one."""

    name: str
    kind: str = ""
    state: str = "enabled"
    priority: int = 0
    required: bool = False
    modes: Sequence[str] = ()
    tools: Sequence[str] = ()
    command: Sequence[str] = ()


def _rows(found: HooksConfig) -> Iterator[_Row]:
    from patchbay.hooks.process.protocol import MODES

    for builtin in sorted(found.builtins, key=lambda each: (each.priority, each.name)):
        yield _Row(builtin.name, "builtin", priority=builtin.priority, required=builtin.required, tools=builtin.tools)
    for each in sorted(found.processes, key=lambda each: (each.priority, each.spec.name)):
        modes = [mode for mode in MODES if mode in each.spec.modes]
        yield _Row(
            each.spec.name,
            "process",
            priority=each.priority,
            required=each.required,
            modes=modes,
            tools=each.tools,
            command=each.spec.command,
        )
    for name in found.disabled:
        yield _Row(name, state="disabled")
