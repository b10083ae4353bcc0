"""``patchbay plugins``: run and control a plugin host, which runs in the process of ``run``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from patchbay.cli.options import CONTEXT, SERVER, Json, TokenFile, command_group, server_option
from patchbay.cli.terminal import escape_unencodable, fail, plain
from patchbay.errors import ConfigurationError, PatchbayError
from patchbay.loopback import is_this_machine

if TYPE_CHECKING:
    from patchbay.plugins.host.process import LogLine
    from patchbay.plugins.manifest import PluginSpec

PORT = 48916
"""The default port, where servers of N.E.K.O look for the plugin host."""


def port_option(least: int, text: str, *names: str, **options: Any) -> Any:
    """Return the option for the port of a plugin host, which is at least ``least``."""
    envvar = ["NEKO_USER_PLUGIN_SERVER_PORT", "PATCHBAY_PLUGINS_PORT"]
    return typer.Option(*names, min=least, max=65535, metavar="PORT", envvar=envvar, help=text, **options)


_Port = Annotated[int, port_option(1, "Port of the plugin host.")]
_Plugin = Annotated[str, typer.Argument(metavar="ID", help="Plugin id.", show_default=False)]

plugins = command_group(
    "plugins",
    "Run plugins in separate processes, and register their tools with the server (patchbay serve).\n\n"
    "[bold]run[/bold] starts the plugin host; the other commands connect to it by its port.",
    epilog="[bold]Exit status[/bold]: 0 success, also Ctrl-C of run; 1 no host on this port, or the command failed; "
    "2 usage error; 130 Ctrl-C of another command.",
)


@plugins.command(context_settings=CONTEXT)
def run(
    target: Annotated[
        str,
        typer.Argument(metavar="DIR|MODULE:CLASS", help="Folder of plugins, folder of a plugin, or a class.", show_default=False),
    ],
    server: Annotated[str, server_option("Server to register the tools with.")] = SERVER,
    port: Annotated[int, port_option(0, "Port for the server's calls; 0 picks a free one.")] = PORT,
    host: Annotated[
        str, typer.Option(metavar="HOST", envvar="PATCHBAY_PLUGINS_HOST", help="Address for the server's calls.")
    ] = "127.0.0.1",
    advertise: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            envvar="PATCHBAY_PLUGINS_ADVERTISE",
            help="Address of this host for servers on other machines, by default --host: 10.0.0.7, https://tools.example.com.",
        ),
    ] = "",
    instance: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            envvar="PATCHBAY_PLUGINS_INSTANCE",
            help="Name of this host where several run the same plugins: their tools are replicas.",
        ),
    ] = "",
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Reload a plugin when its files change; pass a changed configuration to its hook for that, if any."
        ),
    ] = False,
    token_file: TokenFile = None,
    env: Annotated[
        list[str],
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="Variable of the plugins' environment; without a value that of this shell. They inherit PATH, HOME and a few "
            "others, and no keys.",
        ),
    ] = [],  # noqa: B006
    drain_timeout: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", envvar="PATCHBAY_DRAIN_TIMEOUT", help="Time for running calls to finish."),
    ] = 5.0,
) -> None:
    """Run plugins until Ctrl-C.

    Their tools are registered with the server, which may start later or
    restart; each registration is printed ("weather: get_weather registered for
    default"), as is plugin output. Ctrl-C removes the tools and waits for
    running calls; a second Ctrl-C does not wait.

    [bold]Examples[/bold]

      patchbay plugins run ./plugins

      patchbay plugins run ./plugins/weather --watch

      patchbay plugins run my_package.weather:WeatherPlugin --server http://127.0.0.1:9000

      patchbay plugins run ./plugins --instance b --host 10.0.0.7 --server http://10.0.0.2:48911 --token-file token
    """  # fmt: skip
    from patchbay.plugins.host.policy import HostPolicy

    specs, folder = resolve_plugins(target)
    token = _token_reader(token_file)
    token()  # errors are reported before anything runs
    _run_host(
        specs,
        folder,
        (host, port),
        advertise=advertise,
        instance=instance,
        server=server,
        policy=HostPolicy(drain=drain_timeout),
        token=token,
        watch=watch,
        env=_variables(env),
    )


def _run_host(
    specs: Sequence[PluginSpec],
    folder: Path | None,
    address: tuple[str, int],
    *,
    advertise: str,
    server: str,
    watch: bool,
    **options: Any,
) -> None:
    from patchbay.plugins.host.control import run_host
    from patchbay.server.runtime import listen_on, log_to_stderr, url_of

    listener = listen_on(*address)
    callback = advertised_url(advertise, address[0], listener.getsockname()[1])

    def ready(_host: Any) -> None:
        _print(f"patchbay plugins listening on {url_of(listener)}")
        _print(f"  server {server}; plugins: {', '.join(spec.id for spec in specs) or 'none'}")
        if advertise or not is_this_machine(address[0]):
            _print(f"  calls come to {callback}: start servers with --callback-hosts {urlsplit(callback).hostname}")

    def registered(plugin_id: str, names: Sequence[str], roles: Sequence[str]) -> None:
        _print(f"{plugin_id}: {', '.join(names)} registered" + (f" for {', '.join(roles)}" if roles else ""))

    log_to_stderr()
    escape_unencodable()
    with listener:
        asyncio.run(
            run_host(
                specs,
                listener,
                server=server,
                callback=callback,
                plugins=folder,
                watch=watch,
                on_line=lambda line: _print(_format_line(line)),
                registered=registered,
                ready=ready,
                must_start=folder is None and not (watch and any(spec.folder is not None for spec in specs)),
                stopping=lambda: _print("patchbay plugins stopping (Ctrl-C again: do not wait for calls)"),
                **options,
            )
        )


def advertised_url(advertise: str, host: str, port: int) -> str:
    """Return the address of a plugin host for servers. Raises ConfigurationError for one that no server could call."""
    if not advertise and host in ("0.0.0.0", "::"):  # noqa: S104  (which is no name of a machine)
        raise ConfigurationError(f"--host {host} listens everywhere: say which address servers use: --advertise 10.0.0.7.")
    address = advertise or host
    bracketed = f"[{address}]" if address.count(":") > 1 and not address.startswith(("[", "http")) else address
    url = bracketed if "://" in bracketed else f"http://{bracketed}"
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment or parts.username):
            return url if parts.port or "://" in address else f"{url}:{port}"
    except ValueError:
        pass
    raise ConfigurationError(
        f"--advertise {advertise}: use an address such as 10.0.0.7, or a URL such as http://10.0.0.7:{port}."
    )


def _print(line: str) -> None:
    """Print a line at once. The host goes on when its output is closed."""
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  (until the process ends)


@plugins.command("list", context_settings=CONTEXT)
def list_(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Folder to list; by default the running host.", show_default=False),
    ] = None,
    port: _Port = PORT,
    as_json: Json = False,
) -> None:
    """List the running plugins with their tools, or the plugins of a folder.

    A tool is active (models can call it), pending, refused by the server, or
    stale (lost by the server), with the reason.

    [bold]Examples[/bold]

      patchbay plugins list

      patchbay plugins list --json

      patchbay plugins list ./plugins
    """  # fmt: skip
    if folder is not None:
        specs, _ = resolve_plugins(str(folder))
        members = ("id", "entry", "version", "description", "folder")
        rows = [{name: str(getattr(spec, name)) for name in members} for spec in specs]
        for row in rows if not as_json else ():
            print(f"{row['id']}  {row['entry']}  {row['version']}  {row['description']}".rstrip())
        if not rows and not as_json:
            print(f"No plugins in {folder}.", file=sys.stderr)
    else:
        rows = list(_request(port, do="list"))
        for row in rows if not as_json else ():
            _print_status(row)
    if as_json:
        print(json.dumps(rows, ensure_ascii=False, indent=2))


@plugins.command(context_settings=CONTEXT)
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the plugin, or a path that ends with it.", show_default=False)
    ],
) -> None:
    """Create a plugin: a folder with a class, its plugin.toml, and a passing test.

    [bold]Example[/bold]

      patchbay plugins new plugins/weather
    """  # fmt: skip
    from patchbay.plugins.scaffold import write_scaffold

    for path in write_scaffold(Path(name)):
        print(path)


@plugins.command(context_settings=CONTEXT)
def reload(
    plugin: Annotated[str | None, typer.Argument(metavar="ID", help="Plugin id; by default all.", show_default=False)] = None,
    config: Annotated[bool, typer.Option("--config", help="Only pass its plugin.toml sections to the running process.")] = False,
    port: _Port = PORT,
) -> None:
    """Restart a plugin with its current files.

    Returns when the plugin runs; fails if it exits. Also starts stopped plugins
    and new ones in the host's folder. A frozen plugin stays frozen.

    [bold]Examples[/bold]

      patchbay plugins reload weather

      patchbay plugins reload weather --config
    """  # fmt: skip
    for response in _request(port, do="reload", plugin=plugin, config=config):
        print(f"configured {response['done']}" if config else f"reloaded {response['done']}", flush=True)


@plugins.command(context_settings=CONTEXT)
def freeze(plugin: _Plugin, port: _Port = PORT) -> None:
    """Suspend a plugin, keeping its process.

    Removes its tools from the server, waits for running calls, and runs its
    freeze hook. It stays frozen, even after a crash or a reload, until unfreeze
    or stop.

    [bold]Example[/bold]

      patchbay plugins freeze weather
    """  # fmt: skip
    for response in _request(port, do="freeze", plugin=plugin):
        print(f"frozen {response['done']}")


@plugins.command(context_settings=CONTEXT)
def unfreeze(plugin: _Plugin, port: _Port = PORT) -> None:
    """Resume a frozen plugin.

    Runs its unfreeze hook and registers its tools. If the hook fails, it stays
    frozen.

    [bold]Example[/bold]

      patchbay plugins unfreeze weather
    """  # fmt: skip
    for response in _request(port, do="unfreeze", plugin=plugin):
        print(f"unfrozen {response['done']}")


@plugins.command(context_settings=CONTEXT)
def stop(
    plugin: Annotated[str | None, typer.Argument(metavar="ID", help="Plugin id; default: the host.", show_default=False)] = None,
    port: _Port = PORT,
) -> None:
    """Stop a plugin, or the host with all plugins.

    Removes its tools from the server, waits for running calls, and ends its
    process. reload starts the plugin again.

    [bold]Examples[/bold]

      patchbay plugins stop weather

      patchbay plugins stop
    """  # fmt: skip
    for response in _request(port, do="stop", plugin=plugin):
        print(f"stopped {response['done']}" if response["done"] else "the host stops", flush=True)


@plugins.command(context_settings=CONTEXT)
def logs(
    plugin: Annotated[str | None, typer.Argument(metavar="ID", help="Plugin id; by default all.", show_default=False)] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="Number of last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as JSON.")] = False,
    port: _Port = PORT,
) -> None:
    """Show the output and the log of running plugins.

    "!" marks lines of stderr, "*" lines of the host.

    [bold]Examples[/bold]

      patchbay plugins logs weather --follow

      patchbay plugins logs -n 20 --json
    """  # fmt: skip
    from patchbay.plugins.host.process import LogLine

    escape_unencodable()
    for response in _request(port, do="logs", plugin=plugin, lines=lines, follow=follow):
        if as_json:
            print(json.dumps(response, ensure_ascii=True), flush=True)
        else:
            print(_format_line(LogLine(**response)), flush=True)


def _request(port: int, **request: Any) -> Iterator[dict[str, Any]]:
    """Send a request to the host and yield its responses; exit with 1 if it fails."""
    from patchbay.plugins.host.control import ask, folder_of

    try:
        yield from ask(folder_of(port), **request)
    except ConfigurationError:
        raise
    except PatchbayError as error:
        fail(str(error), 1)


def resolve_plugins(target: str) -> tuple[tuple[PluginSpec, ...], Path | None]:
    """Return the plugins of a folder, or the one of ``module:Class``, and the folder."""
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
        raise ConfigurationError(f"no plugin of {target} is valid.")
    return found.specs, folder


def _variables(given: list[str]) -> dict[str, str]:
    """Return the variables of ``--env``. Raises ConfigurationError for one that is not set here."""
    variables: dict[str, str] = {}
    for name, equals, value in (each.partition("=") for each in given):
        if not name or (not equals and name not in os.environ):
            raise ConfigurationError(f"--env {name}: the variable is not set: set it, or use NAME=VALUE.")
        variables[name] = value if equals else os.environ[name]
    return variables


def _token_reader(path: Path | None) -> Callable[[], str | None]:
    if path is None:
        return lambda: None
    from patchbay.server.settings import read_token

    return lambda: read_token(path.expanduser())


def _format_line(line: LogLine) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(line.time))
    mark = {"stderr": "! ", "host": "* "}.get(line.stream, "")
    return f"{at} [{line.plugin}] {mark}{plain(line.text)}"


def _print_status(row: dict[str, Any]) -> None:
    about = [row["state"], *([f"pid {row['pid']}"] if row["pid"] else []), *([row["reason"]] if row["reason"] else [])]
    if row["restarts"]:
        about.append("restarted once" if row["restarts"] == 1 else f"restarted {row['restarts']} times")
    print(plain(f"{row['id']}  {', '.join(about)}"))
    for tool in row["tools"]:
        print(plain(f"  {tool['name']}  {tool['state']}" + (f": {tool['reason']}" if tool["reason"] else "")))
