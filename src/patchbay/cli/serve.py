"""``patchbay serve``: its flags, its banner, and its exit status. The server itself is ``patchbay.server``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from patchbay._flags import build
from patchbay.cli.options import (
    GOVERNANCE,
    SERVING,
    Audit,
    AuditDays,
    Config,
    Quiet,
    Verbose,
    mcp_config_option,
    reject_flags_as_keys,
    store_option,
    upstream_option,
    verbosity,
    with_flags,
)
from patchbay.cli.plugins import PORT as PLUGINS_PORT
from patchbay.cli.plugins import port_option
from patchbay.cli.terminal import styles
from patchbay.cli.worker import Concurrency, Rate, RunDays
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.realtime.config import RealtimeLimits, RealtimeSettings
from patchbay.server.settings import ChatSettings, ProxySettings, ServeOptions, ToolsSettings, listed

if TYPE_CHECKING:
    from patchbay.agents import BaseAgent
    from patchbay.agents.durable import DurableRuns
    from patchbay.cli.serve_plugins import ServedPlugins
    from patchbay.mcp.config import McpServer
    from patchbay.registrations import RegistrationStore
    from patchbay.server.governance import Governance

PORT = 48911
"""The default port of clients of N.E.K.O."""

_MAX_URL = 256 * 1024
_MODELS = "Models with these tools"
_SESSIONS = "Live sessions"

_REFUSED = (
    "{host} is reachable from other machines, but their requests are refused: --proxy ADDRESS --token-file FILE takes those that "
    "come from ADDRESS, a reverse proxy or another machine, and send the token"
)

_logger = logging.getLogger(__name__)


Port = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        envvar=["MAIN_SERVER_PORT", "PATCHBAY_SERVE_PORT"],
        help="Port to listen on; 0 picks a free one.",
    ),
]
Host = Annotated[str, typer.Option(metavar="HOST", envvar="PATCHBAY_SERVE_HOST", help="Address to listen on.")]
Roles = Annotated[str, typer.Option(metavar="NAMES", envvar="PATCHBAY_ROLES", help="Comma-separated role names.")]
StoreUrl = Annotated[
    str,
    store_option(
        "Database of registrations and stored responses: sqlite:///tools.db, a file, postgresql://user@host/name; "
        "memory: lost at exit."
    ),
]
UpstreamUrl = Annotated[
    str | None,
    upstream_option(
        "Base URL of an OpenAI-compatible server, such as http://127.0.0.1:11434/v1. Its models get the tools at "
        "/v1/chat/completions.",
        rich_help_panel=_MODELS,
    ),
]
McpConfig = Annotated[
    Path | None,
    mcp_config_option(
        "File with mcpServers, whose tools are offered; default: ~/.config/patchbay/mcp.json; none: no file.",
        rich_help_panel="Tools",
    ),
]
Plugins = Annotated[
    str | None,
    typer.Option(
        "--plugins",
        metavar="DIR|MODULE:CLASS",
        envvar="PATCHBAY_PLUGINS",
        rich_help_panel="Tools",
        help="Run these plugins, as patchbay plugins run does, in processes that end with the server.",
    ),
]
Agents = Annotated[
    list[str],
    typer.Option(
        "--agent",
        metavar="MODULE:AGENT",
        envvar="PATCHBAY_AGENTS",
        rich_help_panel=_MODELS,
        help="Agent that clients use as a model of its name; MODULE may be a FILE.py. Repeatable.",
    ),
]
Durable = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="PATCHBAY_DURABLE",
        rich_help_panel="Durable runs",
        help="Database of durable runs of the --agent, at /api/agents/NAME/runs; store: that of --store. SQLite or PostgreSQL.",
    ),
]
MediaFolder = Annotated[
    Path | None,
    typer.Option(
        "--media-folder",
        metavar="DIR",
        envvar="PATCHBAY_MEDIA_FOLDER",
        rich_help_panel="Tools",
        help="Folder that all servers of the store share, so that each has the files that tools gave the others.",
    ),
]
PluginsPort = Annotated[
    int, port_option(0, "Port of the --plugins; 0 picks a free one.", "--plugins-port", rich_help_panel="Tools")
]


@with_flags(
    (_MODELS, ChatSettings),
    (_SESSIONS, RealtimeSettings),
    (_SESSIONS, RealtimeLimits),
    (SERVING, ServeOptions, "drain_timeout", "drain_delay"),
    (SERVING, ToolsSettings, "keep_turns", "keep_content"),
    ("Log", ServeOptions, "log_format", "otel", "otel_content"),
    ("Access", ToolsSettings, "token", "allowed_hosts", "allowed_origins", "proxies", "needs_secret"),
    ("Tools", ToolsSettings, "callback_ports", "callback_hosts", "strict_arguments", "max_result_size", "lease"),
    (_MODELS, ProxySettings, "upstream_key", "upstream_timeout", "response_days"),
    (GOVERNANCE, ProxySettings, "allow_unguarded"),
    ("Tools and text", TextOptions),
)
def serve(
    port: Port = PORT,
    host: Host = "127.0.0.1",
    roles: Roles = "default",
    store: StoreUrl = "sqlite:///tools.db",
    verbose: Verbose = False,
    quiet: Quiet = False,
    config: Config = None,
    audit: Audit = None,
    audit_days: AuditDays = 90.0,
    upstream: UpstreamUrl = None,
    mcp_config: McpConfig = None,
    plugins: Plugins = None,
    plugins_port: PluginsPort = PLUGINS_PORT,
    agent: Agents = [],  # noqa: B006
    durable: Durable = None,
    run_concurrency: Concurrency = 10,
    run_rate: Rate = None,
    run_days: RunDays = 90.0,
    media_folder: MediaFolder = None,
    **values: Any,
) -> None:
    """Serve the tool registry: other processes register tools while it runs.

    Tools are registered by POST /api/tools/register with the URL that is called. GET /openapi.json describes the API. Only
    programs on this machine have access. With --upstream, OpenAI clients can use /v1 here, whose models call the tools. With
    --realtime or --upstream, browsers and scripts can open live sessions at the WebSocket /api/sessions/ROLE.

    [bold]Examples[/bold]

      patchbay serve

      patchbay serve --roles ann,ben --store sqlite:////var/lib/patchbay/tools.db

      patchbay serve --upstream http://127.0.0.1:11434/v1

      patchbay serve --upstream http://127.0.0.1:11434/v1 --config hooks.toml

      patchbay serve --upstream http://127.0.0.1:11434/v1 --plugins ./plugins

      patchbay serve --agent forecaster.py:agent

      patchbay serve --agent forecaster.py:agent --durable sqlite:///runs.db

      OPENAI_API_KEY=... patchbay serve --realtime openai/gpt-realtime

      MAIN_SERVER_PORT=9000 patchbay serve --token-file token --strict-arguments
    """  # fmt: skip
    from patchbay.cli.request_lines import show_requests
    from patchbay.cli.serving import (
        MEMORY,
        examination_of,
        is_loopback,
        load_agent,
        make_governance,
        mcp_servers,
        print_monitors,
        text_options,
    )
    from patchbay.doctor.model_servers import warning_of_upstream
    from patchbay.mcp.pins import Pins
    from patchbay.registrations import RegistrationStore
    from patchbay.server.app import create_tools_app
    from patchbay.server.runtime import serve as run

    options = build(ServeOptions, values, host=host, port=port, log=verbosity(verbose=verbose, quiet=quiet))
    role_names = tuple(dict.fromkeys(listed(roles)))
    if not role_names:
        raise ConfigurationError("--roles needs at least one name.")
    settings = build(ToolsSettings, values)
    # Read when websockets is first imported: the URL of a session contains its instructions.
    os.environ.setdefault("WEBSOCKETS_MAX_LINE_LENGTH", str(_MAX_URL))
    realtime = _realtime_settings(values)
    warnings: list[str] = []
    if realtime is not None:
        from patchbay.server.live_sessions.factory import key_problem

        warnings.append(key_problem(realtime))
    proxied = _proxy_settings(values, upstream, host, port) if upstream else None
    if proxied is not None:
        warnings.append(warning_of_upstream(proxied.upstream))
    if not is_loopback(host) and not settings.proxies:
        warnings.append(_REFUSED.format(host=host))
    chat = build(ChatSettings, values, options=text_options(values)) if upstream else None
    registrations = None if store == MEMORY else RegistrationStore(store)
    agents = [load_agent(target) for target in agent]
    runs: DurableRuns | None = None
    if durable is not None:
        limits = {"concurrency": run_concurrency, "per_minute": run_rate, "keep_days": run_days}
        runs = _durable_runs(durable, store, agents, drain_timeout=options.drain_timeout, **limits)
    kept = store if registrations is not None else None
    governance = make_governance(config, audit, audit_days, store=kept, media_folder=media_folder)
    with ExitStack() as opened:
        served_plugins: ServedPlugins | None = None
        if plugins is not None:
            from patchbay.cli.serve_plugins import ServedPlugins

            served_plugins = ServedPlugins(plugins, plugins_port)
            opened.callback(served_plugins.close)
            if settings.callback_ports is not None:
                settings = replace(settings, callback_ports=settings.callback_ports | {served_plugins.port})
        app = create_tools_app(
            role_names,
            store=registrations,
            settings=settings,
            upstream=proxied,
            chat=chat,
            realtime=realtime,
            governance=governance,
            mcp_servers=partial(mcp_servers, mcp_config, config),
            mcp_pins=Pins(),
            agents=agents,
            durable=runs,
            beside=served_plugins.run if served_plugins is not None else None,
        )

        if served_plugins is not None:
            app.restarts["plugin"] = served_plugins.restarts
        if app.proxy is not None:
            show_requests(app.proxy, options)
            if proxied is not None:
                app.proxy.examine = examination_of(proxied)

        def announce(url: str) -> None:
            _announce(url, role_names, registrations, governance, realtime, proxied, app.mcp_host.servers, served_plugins, agents)
            _, dim, plain = styles(sys.stdout)
            if runs is not None:
                print(f"  {dim}runs{plain} {url}/api/agents/{agents[0].name}/runs, in {runs.display_url}")
            print_monitors(url, governance, needs_token=settings.token is not None)
            for each in filter(None, warnings):
                _logger.warning("%s", each)

        sys.exit(run(lambda _worker: app, options, ready=announce))


def _announce(
    url: str,
    roles: tuple[str, ...],
    store: RegistrationStore | None,
    governance: Governance,
    realtime: RealtimeSettings | None,
    upstream: ProxySettings | None,
    servers: tuple[McpServer, ...],
    plugins: ServedPlugins | None,
    agents: Sequence[BaseAgent],
) -> None:
    """Print the addresses."""
    bold, dim, plain = styles(sys.stdout)
    models = " and ".join(
        [
            *([f"the models of {upstream.upstream}"] if upstream is not None else []),
            *(f"the agent {each.name}" for each in agents),
        ]
    )
    print(f"patchbay serve listening on {bold}{url}{plain}")
    print(f"  {dim}tools{plain} {url}/api/tools")
    print(f"  {dim}roles{plain} {', '.join(roles)}")
    print(f"  {dim}store{plain} {'memory' if store is None else store.database.display_url}")
    if governance.settings.config is not None:
        print(f"  {dim}hooks{plain} {governance.summary}")
    if names := ", ".join(each.name for each in servers):
        print(f"  {dim}mcp{plain} {names}")
    if plugins is not None:
        print(f"  {dim}plugins{plain} {plugins.names}; patchbay plugins list --port {plugins.port}")
    if model := " or ".join(filter(None, (realtime.model if realtime is not None else "", models))):
        path = f"/api/sessions/{quote(roles[0])}"
        print(f"  {dim}sessions{plain} ws{url.removeprefix('http')}{path}, with {model}")
    print(f"  {dim}chat{plain} {f'{url}/v1, with {models}' if models else 'none (--upstream, --agent)'}")


def _durable_runs(url: str, store: str, agents: Sequence[BaseAgent], **options: Any) -> DurableRuns:
    """Create the durable runs of ``--durable``. Raises ConfigurationError."""
    from patchbay.agents.durable import DurableRuns
    from patchbay.cli.serving import MEMORY

    if not agents:
        raise ConfigurationError("--durable needs an --agent MODULE:AGENT.")
    if url == "store" and store == MEMORY:
        raise ConfigurationError("--durable store needs a --store that is a database.")
    return DurableRuns(store if url == "store" else url, **options)


def _proxy_settings(values: dict[str, Any], upstream: str, host: str, port: int) -> ProxySettings:
    """Create the settings of the upstream. Raises ConfigurationError."""
    from patchbay.cli.serving import reject_itself

    reject_flags_as_keys(upstream_key=values["upstream_key"])
    given = {name: values[name] for name in ("upstream_key", "upstream_timeout", "response_days", "allow_unguarded")}
    settings = build(ProxySettings, given, upstream=upstream)
    reject_itself(settings.upstream, host, port)
    return settings


def _realtime_settings(values: dict[str, Any]) -> RealtimeSettings | None:
    """Create the settings of realtime sessions, None without a model. Raises ConfigurationError."""
    flags = {"url": "url", "key": "api_key", "voice": "voice", "calls": "flood_calls"}
    reject_flags_as_keys(realtime_key=values["api_key"])
    if not values["model"]:
        for flag, name in flags.items():
            if values[name] and values[name] != RealtimeLimits.flood_calls:
                raise ConfigurationError(f"--realtime-{flag} needs --realtime MODEL.")
        return None
    given = {name: values[name] or None for name in ("model", "url", "api_key", "voice")}
    return build(RealtimeSettings, given, limits=build(RealtimeLimits, values))
