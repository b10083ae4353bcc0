"""Server processes of ``patchbay proxy`` and ``patchbay serve``. Does not import the parser of flags.

The proxy runs in a fresh interpreter that replaces the process that parsed its flags (same process id): the parser and its
libraries would take a quarter of its memory. Flags are passed by a pipe, so that keys are in no argument list or environment.
"""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from patchbay.cli.terminal import USAGE_ERROR, fail, styles
from patchbay.errors import ConfigurationError, PatchbayError

if TYPE_CHECKING:
    from patchbay.formats.spec import Format
    from patchbay.mcp.config import McpServer
    from patchbay.models.options import TextOptions
    from patchbay.server.governance import Governance
    from patchbay.server.proxy import ProxyApp
    from patchbay.server.settings import ProxySettings

_PIPE_SIZE = 60_000
_NONE = "none"
MEMORY = "memory"
PROXY_STORE = "sqlite:///proxy.db"
_IN_MEMORY = "sqlite://"
_DAY = 24 * 3600.0


def become_proxy(values: dict[str, Any]) -> NoReturn:
    """Replace this process by the proxy with these values of flags. Raises ConfigurationError if they are too long."""
    message = json.dumps(values).encode()
    if len(message) > _PIPE_SIZE:
        raise ConfigurationError("the flags are too long.")
    reading, writing = os.pipe()
    os.write(writing, message)  # fits the pipe, so that it does not block
    os.close(writing)
    os.set_inheritable(reading, True)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, *_path_flags(), "-m", __name__, str(reading)]
    os.execv(sys.executable, command)  # noqa: S606 - ourselves, without a shell


def _path_flags() -> list[str]:
    """Return the flags with which ``-m`` imports from the current folder only if this process does."""
    if sys.flags.isolated:
        return ["-I"]
    return [] if sys.path and sys.path[0] in ("", str(Path.cwd())) else ["-P"]


def serve_proxy(values: dict[str, Any]) -> int:
    """Serve the proxy until stopped, and return the exit status. Raises ConfigurationError."""
    from patchbay._flags import build
    from patchbay.cli.model_servers import warning_of_upstream
    from patchbay.cli.request_lines import show_requests
    from patchbay.proxy import create_app
    from patchbay.server.runtime import serve
    from patchbay.server.settings import ProxySettings, ServeOptions, ToolsSettings

    store = None if values["store"] == MEMORY else values["store"]
    settings = build(ProxySettings, values, upstream=values["upstream"], response_store=store)
    text = text_options(values)
    options = build(ServeOptions, values, log=values["log"])
    governance: Governance | None = None
    if values["config"] is not None:
        _warn_of_servers(Path(values["config"]))
        approvals = store or (None if values["store"] == MEMORY else PROXY_STORE)
        governance = make_governance(Path(values["config"]), values["audit"], values["audit_days"], store=approvals)

    no_events = "each of its workers has its own: start it with --workers 1." if options.workers > 1 else ""
    key_problem = ""
    try:
        ToolsSettings(token=settings.api_key)
    except ConfigurationError as error:
        key_problem = f"patchbay tail needs a longer --api-key: {error}"

    def make_app() -> ProxyApp:
        fields = {name: value for name, value in vars(settings).items() if name != "connect_timeout"}
        app = create_app(**fields, options=text, governance=governance)
        show_requests(app, options.log)
        app.no_events = no_events or key_problem
        return app

    app = make_app()  # errors are reported before anything runs
    reject_itself(settings.upstream, options.host, options.port)
    problems = [key_problem, "" if values["found"] else warning_of_upstream(settings.upstream)]
    return serve(
        make_app if options.workers > 1 else lambda: app,
        options,
        ready=lambda url: _announce(
            url, options.host, settings, governance, found=values["found"], problems=problems, watchable=not app.no_events
        ),
    )


def _warn_of_servers(config: Path) -> None:
    """Warn that the proxy does not mount MCP servers. Raises ConfigurationError."""
    if (path := config.expanduser()).is_file() and mcp_servers(Path(_NONE), path):
        print(f"patchbay: warning: {config}: mcpServers are for patchbay serve: see its --upstream.", file=sys.stderr)


def _announce(
    url: str,
    host: str,
    settings: ProxySettings,
    governance: Governance | None,
    *,
    found: Sequence[tuple[str, str]],
    problems: Sequence[str],
    watchable: bool,
) -> None:
    """Print the addresses, the client's base URL first. ``found``: names and URLs of model servers, the upstream's first."""
    if settings.api_key is None and not is_loopback(host):
        print(
            f"patchbay: warning: {host} is reachable from other machines and there is no --api-key: "
            "anyone there can use this proxy and its upstream.",
            file=sys.stderr,
        )
    bold, dim, plain = styles(sys.stdout)
    print(f"patchbay proxy listening on {bold}{url}{settings.base_path}{plain}")
    print(f"  {dim}upstream{plain} {settings.upstream}{f' ({found[0][0]})' if found else ''}")
    for name, other in found[1:]:
        print(f"  {dim}also found{plain} {name}: --upstream {other}")
    if governance is not None:
        print(f"  {dim}hooks{plain} {governance.summary}")
    if watchable:
        print(f"  {dim}monitor{plain} {monitor_commands(url, governance, needs_token=settings.api_key is not None)}")
    sys.stdout.flush()
    for problem in filter(None, problems):
        print(f"patchbay: warning: {problem.removesuffix('.')}.", file=sys.stderr)


def monitor_commands(url: str, governance: Governance | None, *, needs_token: bool) -> str:
    """Return the commands that watch a server from another terminal."""
    commands = ["patchbay tail"]
    if governance is not None and governance.settings.config is not None:
        commands.append("patchbay approvals watch")
    token = " --token-file FILE" if needs_token else ""
    return "; ".join(f"{each} --server {url}{token}" for each in commands)


def text_options(values: dict[str, Any]) -> TextOptions:
    """Create the options of text and tools from values of flags. Raises ConfigurationError."""
    from patchbay._flags import build
    from patchbay.models.options import TextOptions

    return build(TextOptions, values, format=load_format(values["format"]))


def load_format(value: str) -> str | Format:
    """Resolve ``--format``: a name unchanged, or the format in a file or a checkpoint's folder.

    A name takes precedence over a file of the same name; unknown names are not checked here. Raises ConfigurationError.
    """
    from patchbay.formats.catalog import FORMATS, is_path

    if value == "auto" or value in FORMATS or not (is_path(value) or Path(value).exists()):
        return value
    from patchbay.checkpoint import load_format as load_checkpoint_format  # only imported for files

    return load_checkpoint_format(value)


def make_governance(config: Path | None, audit: str | None, days: float, *, store: str | None) -> Governance:
    """Create hooks, approvals and audit from flags. ``store`` is the default database, None for memory.

    An audit log in memory keeps at most one day, so that it does not grow without bound. Raises ConfigurationError.
    """
    from patchbay.server.governance import Governance, GovernanceSettings

    if config is not None and config.expanduser().is_dir():
        raise ConfigurationError(f"--config: {config} is a folder.")
    if config is not None and not config.expanduser().is_file():
        raise ConfigurationError(f"--config: no such file {config}.")
    database = store if audit is None else audit
    if database is None or database == MEMORY:
        database = _IN_MEMORY
    if database == _IN_MEMORY:
        days = min(days, 1.0) or 1.0
    governance = Governance(
        GovernanceSettings(
            config=config.expanduser() if config is not None else None,
            approvals=store,
            audit=None if database == _NONE else database,
            audit_kept=days * _DAY if days else None,
        )
    )
    file = governance.audit.file if audit is not None and governance.audit is not None else None
    if file is not None and not file.parent.is_dir():  # records would wait for it
        raise ConfigurationError(f"--audit: no such folder {file.parent}.")
    return governance


def mcp_servers(file: Path | None, config: Path | None) -> tuple[McpServer, ...]:
    """Return the MCP servers of ``--mcp-config`` (none: no file; default: the user's file, if there is one) and ``--config``.

    Raises ConfigurationError.
    """
    from patchbay.mcp.config import default_file, read_servers, unique

    files = [each.expanduser() for each in (file, config) if each is not None and str(each) != _NONE]
    if file is None and (found := default_file()).is_file():
        files.insert(0, found)
    return unique(server for each in files for server in read_servers(each))


def reject_itself(upstream: str, host: str, port: int) -> None:
    """Raise ConfigurationError if the upstream is this server: requests would loop until connections run out."""
    from urllib.parse import urlsplit

    target = urlsplit(upstream)
    if target.port == port and (target.hostname == host or (is_loopback(target.hostname or "") and is_loopback(host))):
        raise ConfigurationError(f"the upstream {upstream!r} is this server itself.")


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _main() -> None:
    with open(int(sys.argv[1]), encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor
        values = json.load(pipe)
    try:
        status = serve_proxy(values)
    except PatchbayError as error:
        fail(str(error), USAGE_ERROR)
    except KeyboardInterrupt:
        status = 0  # stopped before it served
    sys.exit(status)


if __name__ == "__main__":
    _main()
