"""``patchbay plugins``: run a folder of plugins, look at them, reload and stop them, and begin a new one.

What lives here: flags, and what is printed. What does not: the host (``patchbay.plugins.host``), which runs in this process; the
other commands ask it by its control socket.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbay.cli.failures import fail
from patchbay.errors import ConfigurationError, PatchbayError

if TYPE_CHECKING:
    from patchbay.plugins.host.logs import LogLine
    from patchbay.plugins.host.spec import PluginSpec

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

plugins = typer.Typer(
    name="plugins",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings=_CONTEXT,
    help="Run plugins, each in a process of its own, and register their tools with the server.",
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
    watch: Annotated[bool, typer.Option("--watch", help="Reload a plugin when its files change.")] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="PATCHBAY_TOKEN_FILE", help="File of mode 0600 with the server's bearer token."),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", envvar="PATCHBAY_DRAIN_TIMEOUT", help="How long calls have to end at a stop."),
    ] = 5.0,
) -> None:
    """Run plugins until Ctrl-C; a second one does not wait for their calls.

    The server may come later, and be restarted: the tools are registered again.

    [bold]Examples[/bold]

      patchbay plugins run ./plugins

      patchbay plugins run ./plugins/weather --watch

      patchbay plugins run my_package.weather:WeatherPlugin --server http://127.0.0.1:9000
    """  # fmt: skip
    from patchbay.plugins.host.policy import HostPolicy
    from patchbay.plugins.host.run import run_host
    from patchbay.server.serve import listen_on, url_of

    specs, folder = _plugins_at(target)
    token = _token_of(token_file)
    token()  # whatever is wrong with it is said before anything runs
    listener = listen_on("127.0.0.1", port)
    url = url_of(listener)

    def ready(_host: Any) -> None:
        print(f"patchbay plugins listening on {url}")
        print(f"  server {server}; plugins: {', '.join(spec.id for spec in specs) or 'none'}", flush=True)

    _log_to_stderr()
    with listener:
        asyncio.run(
            run_host(
                specs,
                listener,
                server=server,
                plugins=folder,
                policy=HostPolicy(drain=drain_timeout),
                token=token,
                watch=watch,
                shown=_show,
                ready=ready,
            )
        )


@plugins.command("list", context_settings=_CONTEXT)
def list_(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="What is in this folder; without it, what the running host has.", show_default=False),
    ] = None,
    port: _Port = PORT,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """List plugins: those of a folder, or those that run, with their tools.

    [bold]Examples[/bold]

      patchbay plugins list

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
        rows = _ask(port, do="list")
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
    port: _Port = PORT,
) -> None:
    """Stop a running plugin and start it anew, from its files as they are now; or take up one that is new in the folder."""
    for answer in _ask(port, do="reload", plugin=plugin):
        print(f"reloaded {answer['done']}")


@plugins.command(context_settings=_CONTEXT)
def stop(
    plugin: Annotated[str | None, typer.Argument(metavar="ID", help="Without it the host stops.", show_default=False)] = None,
    port: _Port = PORT,
) -> None:
    """Stop a running plugin (reload starts it again), or the whole host."""
    for answer in _ask(port, do="stop", plugin=plugin):
        print(f"stopped {answer['done']}" if answer["done"] else "the host stops")


@plugins.command(context_settings=_CONTEXT)
def logs(
    plugin: Annotated[
        str | None, typer.Argument(metavar="ID", help="Without it those of all plugins.", show_default=False)
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    port: _Port = PORT,
) -> None:
    """Show what running plugins have printed and logged."""
    from patchbay.plugins.host.control import ask, folder_of
    from patchbay.plugins.host.logs import LogLine

    try:
        for answer in ask(folder_of(port), do="logs", plugin=plugin, lines=lines, follow=follow):
            _show(LogLine(**answer))
    except PatchbayError as error:
        fail(str(error), 1)


def _ask(port: int, **asked: Any) -> list[dict[str, Any]]:
    from patchbay.plugins.host.control import ask, folder_of

    try:
        return list(ask(folder_of(port), **asked))
    except ConfigurationError:
        raise
    except PatchbayError as error:
        fail(str(error), 1)


def _plugins_at(target: str) -> tuple[tuple[PluginSpec, ...], Path | None]:
    """Return the plugins of a folder or the one of ``module:Class``, and the folder; say what cannot be one."""
    from patchbay.plugins.host.spec import find_plugins, spec_of

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


def _token_of(path: Path | None) -> Callable[[], str | None]:
    if path is None:
        return lambda: None
    from patchbay.server.tools.settings import read_token

    return lambda: read_token(path.expanduser())


def _show(line: LogLine) -> None:
    at = time.strftime("%H:%M:%S", time.localtime(line.time))
    mark = {"stderr": "! ", "host": "* "}.get(line.stream, "")
    try:
        print(f"{at} [{line.plugin}] {mark}{line.text}", flush=True)
    except UnicodeEncodeError:
        print(f"{at} [{line.plugin}] {mark}{line.text.encode('ascii', 'backslashreplace').decode()}", flush=True)


def _print_status(row: dict[str, Any]) -> None:
    about = [row["state"], *([f"pid {row['pid']}"] if row["pid"] else []), *([row["reason"]] if row["reason"] else [])]
    if row["restarts"]:
        about.append(f"restarted {row['restarts']} times")
    print(f"{row['id']}  {', '.join(about)}")
    for tool in row["tools"]:
        print(f"  {tool['name']}  {tool['state']}" + (f": {tool['reason']}" if tool["reason"] else ""))


def _log_to_stderr() -> None:
    from patchbay.server.serve import log_to_stderr

    log_to_stderr()
