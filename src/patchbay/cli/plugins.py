"""``patchbay plugins``: run a folder of plugins, look at them, reload and stop them, and begin a new one.

What lives here: flags, and what is printed. What does not: the host (``patchbay.plugins.host``), which runs in this process; the
other commands ask it by its control socket.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbay.cli.failures import fail
from patchbay.cli.harmless import harmless
from patchbay.errors import ConfigurationError, PatchbayError

if TYPE_CHECKING:
    from patchbay.plugins.host.process import LogLine
    from patchbay.plugins.manifest import PluginSpec

PORT = 48916
"""Where the seeds' servers look for the plugins' host."""

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

_Port = Annotated[
    int,
    typer.Option(
        min=1,
        max=65535,
        metavar="PORT",
        envvar=["NEKO_USER_PLUGIN_SERVER_PORT", "PATCHBAY_PLUGINS_PORT"],
        help="Which host: the port that it runs at.",
    ),
]

_Json = Annotated[bool, typer.Option("--json", help="Print it as JSON.")]

_STATUS = """[bold]Exit status[/bold]: 0 it is done; 1 no host runs there, or it cannot be done; 2 the command was called wrongly;
130 Ctrl-C. What went wrong is said on one line on stderr."""

plugins = typer.Typer(
    name="plugins",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_CONTEXT,
    help="Run plugins, each in a process of its own, and register their tools with the server (patchbay serve).\n\n"
    "One terminal has the host ([bold]run[/bold]); the other commands ask it, by its port.",
    epilog=" ".join(_STATUS.split()),
)


@plugins.command(context_settings=_CONTEXT)
def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DIR|MODULE:CLASS", help="A folder of plugins, one plugin's folder, or a class.", show_default=False
        ),
    ],
    server: Annotated[
        str, typer.Option(metavar="URL", envvar="PATCHBAY_SERVER", help="The server to register the tools with.")
    ] = "http://127.0.0.1:48911",
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            envvar=["NEKO_USER_PLUGIN_SERVER_PORT", "PATCHBAY_PLUGINS_PORT"],
            help="Port that the server's calls come in by; 0 takes a free one.",
        ),
    ] = PORT,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Reload a plugin when its files change; hand it its new configuration, where it has a hook for that."
        ),
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="PATCHBAY_TOKEN_FILE", help="File of mode 0600 with the server's bearer token."),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", envvar="PATCHBAY_DRAIN_TIMEOUT", help="How long calls have to end at a stop."),
    ] = 5.0,
) -> None:
    """Run plugins until Ctrl-C.

    Their tools are registered with the server, which may come later and be
    restarted; a line says when they are ("weather: get_weather registered for
    default"). What they print and log is shown with their names. At Ctrl-C the
    tools are taken away and calls have time to end; a second Ctrl-C does not
    wait for them.

    [bold]Examples[/bold]

      patchbay plugins run ./plugins

      patchbay plugins run ./plugins/weather --watch

      patchbay plugins run my_package.weather:WeatherPlugin --server http://127.0.0.1:9000
    """  # fmt: skip
    from patchbay.cli.printer import Printer
    from patchbay.plugins.host.control import run_host
    from patchbay.plugins.host.policy import HostPolicy
    from patchbay.server.serve import listen_on, url_of

    specs, folder = _plugins_at(target)
    token = _token_of(token_file)
    token()  # whatever is wrong with it is said before anything runs
    listener = listen_on("127.0.0.1", port)
    url = url_of(listener)

    printer = Printer()

    def ready(_host: Any) -> None:
        printer.print(f"patchbay plugins listening on {url}")
        printer.print(f"  server {server}; plugins: {', '.join(spec.id for spec in specs) or 'none'}")

    def registered(plugin_id: str, names: Sequence[str], roles: Sequence[str]) -> None:
        printer.print(f"{plugin_id}: {', '.join(names)} registered" + (f" for {', '.join(roles)}" if roles else ""))

    _log_to_stderr()
    with listener, closing(printer):
        asyncio.run(
            run_host(
                specs,
                listener,
                server=server,
                plugins=folder,
                policy=HostPolicy(drain=drain_timeout),
                token=token,
                watch=watch,
                shown=lambda line: printer.print(_line_of(line)),
                registered=registered,
                ready=ready,
                must_start=folder is None and not (watch and _is_in_a_file(specs)),
                stopping=lambda: printer.print("patchbay plugins stopping (Ctrl-C: do not wait for calls)"),
            )
        )


@plugins.command("list", context_settings=_CONTEXT)
def list_(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="What is in this folder; without it, what the running host has.", show_default=False),
    ] = None,
    port: _Port = PORT,
    as_json: _Json = False,
) -> None:
    """List plugins: those that run with their tools, or those of a folder.

    A tool is active (models can call it), pending, refused by the server, or
    stale (the server has lost it), and it is said why.

    [bold]Examples[/bold]

      patchbay plugins list

      patchbay plugins list --json

      patchbay plugins list ./plugins
    """  # fmt: skip
    if folder is not None:
        specs, _ = _plugins_at(str(folder))
        rows = [
            {
                "id": spec.id,
                "entry": spec.entry,
                "version": spec.version,
                "description": spec.description,
                "folder": str(spec.folder),
            }
            for spec in specs
        ]
        for row in rows if not as_json else ():
            print(f"{row['id']}  {row['entry']}  {row['version']}  {row['description']}".rstrip())
    else:
        rows = list(_ask(port, do="list"))
        for row in rows if not as_json else ():
            _print_status(row)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))


@plugins.command(context_settings=_CONTEXT)
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The plugin's name, or a path that ends with it.", show_default=False)
    ],
) -> None:
    """Begin a plugin: a folder with a class, its plugin.toml, and a test that passes.

    [bold]Example[/bold]

      patchbay plugins new plugins/weather
    """  # fmt: skip
    from patchbay.plugins.scaffold import write_scaffold

    for path in write_scaffold(Path(name)):
        print(path)


@plugins.command(context_settings=_CONTEXT)
def reload(
    plugin: Annotated[str | None, typer.Argument(metavar="ID", help="Without it all are reloaded.", show_default=False)] = None,
    config: Annotated[
        bool, typer.Option("--config", help="Only hand over the sections of its own in plugin.toml; its process goes on.")
    ] = False,
    port: _Port = PORT,
) -> None:
    """Stop a plugin and start it anew, as its files are now.

    It returns when the plugin runs, or has ended again, which is a failure. A
    plugin that was stopped is started, and one that is new in the host's folder
    is taken up. One that is frozen stays so.

    [bold]Examples[/bold]

      patchbay plugins reload weather

      patchbay plugins reload weather --config
    """  # fmt: skip
    for answer in _ask(port, do="reload", plugin=plugin, config=config):
        print(f"configured {answer['done']}" if config else f"reloaded {answer['done']}", flush=True)


@plugins.command(context_settings=_CONTEXT)
def freeze(
    plugin: Annotated[str, typer.Argument(metavar="ID", help="Which plugin.", show_default=False)], port: _Port = PORT
) -> None:
    """Let a plugin take no calls, and keep its process.

    Its tools are taken from the server, calls under way have time to end, and
    its freeze hook is run. It stays frozen, also through a crash and a reload,
    until unfreeze or stop.

    [bold]Example[/bold]

      patchbay plugins freeze weather
    """  # fmt: skip
    for answer in _ask(port, do="freeze", plugin=plugin):
        print(f"frozen {answer['done']}")


@plugins.command(context_settings=_CONTEXT)
def unfreeze(
    plugin: Annotated[str, typer.Argument(metavar="ID", help="Which plugin.", show_default=False)], port: _Port = PORT
) -> None:
    """Let a frozen plugin take calls again.

    Its unfreeze hook is run, and its tools are registered. If the hook fails,
    it stays frozen.

    [bold]Example[/bold]

      patchbay plugins unfreeze weather
    """  # fmt: skip
    for answer in _ask(port, do="unfreeze", plugin=plugin):
        print(f"unfrozen {answer['done']}")


@plugins.command(context_settings=_CONTEXT)
def stop(
    plugin: Annotated[str | None, typer.Argument(metavar="ID", help="Without it the host stops.", show_default=False)] = None,
    port: _Port = PORT,
) -> None:
    """Stop a plugin, or the host with all of them.

    Its tools are taken from the server, calls under way have time to end, then
    its process ends. It returns when that is done; reload starts the plugin
    again.

    [bold]Examples[/bold]

      patchbay plugins stop weather

      patchbay plugins stop
    """  # fmt: skip
    for answer in _ask(port, do="stop", plugin=plugin):
        print(f"stopped {answer['done']}" if answer["done"] else "the host stops", flush=True)


@plugins.command(context_settings=_CONTEXT)
def logs(
    plugin: Annotated[
        str | None, typer.Argument(metavar="ID", help="Without it those of all plugins.", show_default=False)
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    port: _Port = PORT,
) -> None:
    """Show what running plugins have printed and logged.

    Lines of stderr are marked with "!", those of the host about a plugin with "*".

    [bold]Examples[/bold]

      patchbay plugins logs weather --follow

      patchbay plugins logs -n 20 --json
    """  # fmt: skip
    from patchbay.plugins.host.process import LogLine

    for answer in _ask(port, do="logs", plugin=plugin, lines=lines, follow=follow):
        if as_json:
            print(json.dumps(answer, ensure_ascii=True), flush=True)
        else:
            _show(_line_of(LogLine(**answer)))


def _ask(port: int, **asked: Any) -> Iterator[dict[str, Any]]:
    """Ask the host at a port, and yield its answers as they come; say what cannot be done, and exit with 1."""
    from patchbay.plugins.host.control import ask, folder_of

    try:
        yield from ask(folder_of(port), **asked)
    except ConfigurationError:
        raise
    except PatchbayError as error:
        fail(str(error), 1)


def _plugins_at(target: str) -> tuple[tuple[PluginSpec, ...], Path | None]:
    """Return the plugins of a folder or the one of ``module:Class``, and the folder; say what cannot be one."""
    from patchbay.plugins.manifest import find_plugins, spec_of

    folder = Path(target).expanduser()
    if not folder.exists() and ":" in target:
        return (spec_of(target, beside=Path.cwd()),), None
    if not folder.is_dir():
        raise ConfigurationError(f"{target!r} is neither a folder nor module:Class.")
    found = find_plugins(folder)
    for problem in found.problems:
        print(f"patchbay: {problem}", file=sys.stderr)
    if not found.specs and found.problems:
        raise ConfigurationError(f"no plugin of {target} can be run.")
    return found.specs, folder


def _is_in_a_file(specs: Sequence[PluginSpec]) -> bool:
    """Whether there is a file of a plugin here, which may be mended while it is watched."""
    return any(spec.folder is not None for spec in specs)


def _token_of(path: Path | None) -> Callable[[], str | None]:
    if path is None:
        return lambda: None
    from patchbay.server.tools.settings import read_token

    return lambda: read_token(path.expanduser())


def _line_of(line: LogLine) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(line.time))
    mark = {"stderr": "! ", "host": "* "}.get(line.stream, "")
    return f"{at} [{line.plugin}] {mark}{harmless(line.text)}"


def _show(text: str) -> None:
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        print(text.encode("ascii", "backslashreplace").decode(), flush=True)


def _print_status(row: dict[str, Any]) -> None:
    about = [row["state"], *([f"pid {row['pid']}"] if row["pid"] else []), *([row["reason"]] if row["reason"] else [])]
    if row["restarts"]:
        about.append("restarted once" if row["restarts"] == 1 else f"restarted {row['restarts']} times")
    print(harmless(f"{row['id']}  {', '.join(about)}"))
    for tool in row["tools"]:
        print(harmless(f"  {tool['name']}  {tool['state']}" + (f": {tool['reason']}" if tool["reason"] else "")))


def _log_to_stderr() -> None:
    from patchbay.server.serve import log_to_stderr

    log_to_stderr()
