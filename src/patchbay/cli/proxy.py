"""``patchbay proxy``: its flags and its banner. The proxy itself is ``patchbay.proxy``."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchbay._flags import build
from patchbay._redaction import Redactor
from patchbay.cli.client_settings import CLIENTS, client_settings, origin_of
from patchbay.cli.options import (
    GOVERNANCE,
    SERVING,
    Audit,
    AuditDays,
    Config,
    Quiet,
    Verbose,
    reject_flags_as_keys,
    store_option,
    upstream_option,
    verbosity,
    with_flags,
)
from patchbay.cli.serving import (
    MEMORY,
    NONE,
    examination_of,
    is_loopback,
    make_governance,
    mcp_servers,
    print_monitors,
    reject_itself,
    text_options,
)
from patchbay.cli.terminal import styles
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.server.settings import ChatSettings, ProxySettings, ServeOptions, ToolsSettings

if TYPE_CHECKING:
    from patchbay.server.governance import Governance
    from patchbay.server.proxy import ProxyApp

_logger = logging.getLogger(__name__)

_STORE = "sqlite:///proxy.db"
"""The default database of approvals and the audit log."""


PROXY_FLAGS = (
    (
        SERVING,
        ProxySettings,
        "api_key",
        "base_path",
        "cors",
        "allowed_hosts",
        "allowed_origins",
        "max_body_size",
        "response_days",
        "keep_turns",
        "keep_content",
    ),
    ("Tools and text", TextOptions),
    ("Tools and text", ChatSettings, "max_identical_client_calls"),
    (GOVERNANCE, ProxySettings, "allow_unguarded"),
    ("Log", ServeOptions, "log_format", "otel", "otel_content"),
    ("Log", ProxySettings, "log_file", "max_log_size"),
)
"""The groups of flags of commands that serve the proxy."""

PrintEnv = Annotated[
    str | None,
    typer.Option(
        metavar="CLIENT",
        show_default=False,
        rich_help_panel=SERVING,
        help=f"Print the settings that point a client at this proxy, and exit: {', '.join(CLIENTS)}.",
    ),
]
Store = Annotated[
    str | None,
    store_option(
        "Database of stored responses, approval requests and the audit log; memory: lost when the proxy ends. "
        "Default: memory, with --config sqlite:///proxy.db for the last two.",
        show_default=False,
        rich_help_panel=SERVING,
    ),
]


@with_flags(
    ("Upstream", ProxySettings, "upstream_key", "upstream_timeout"),
    (SERVING, ServeOptions, "host", "port", "workers", "drain_timeout", "drain_delay"),
    *PROXY_FLAGS,
)
def proxy(
    upstream: Annotated[
        str,
        upstream_option(
            "Base URL of the OpenAI-compatible server, such as http://127.0.0.1:11434/v1. Default: the first that runs on this "
            "machine of Ollama, LM Studio, llama.cpp and vLLM.",
            show_default=False,
            rich_help_panel="Upstream",
        ),
    ] = "",
    print_env: PrintEnv = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    config: Config = None,
    store: Store = None,
    audit: Audit = None,
    audit_days: AuditDays = 90.0,
    **values: Any,
) -> None:
    """Give any client working tool calls on any model server.

    Use the proxy as the client's base URL. Chat completions, OpenAI Responses, Anthropic Messages and Gemini's generateContent
    with tools work with every model; all other requests pass through unchanged.

    [bold]Examples[/bold]

      patchbay proxy

      patchbay proxy --upstream http://127.0.0.1:11434/v1

      UPSTREAM_API_KEY=… patchbay proxy --upstream https://llm.example.com/v1

      patchbay proxy --upstream http://127.0.0.1:11434/v1 --config hooks.toml

      patchbay proxy --print-env codex

      PROXY_API_KEY=… patchbay proxy --upstream http://gpu:8000/v1 --host 0.0.0.0
    """  # fmt: skip
    if print_env is not None:
        print_settings(print_env, values)
        return
    start = prepare(
        upstream, values, verbose=verbose, quiet=quiet, config=config, store=store, audit=audit, audit_days=audit_days
    )
    sys.exit(start())


def print_settings(client: str, values: dict[str, Any], **known: str) -> None:
    """Print the settings that point a client at the proxy of these flags. Raises ConfigurationError."""
    origin = origin_of(values["host"], values["port"])
    typer.echo(client_settings(client, origin=origin, base_path=values["base_path"], **known).lines(), nl=False)


def prepare(
    upstream: str,
    values: dict[str, Any],
    *,
    verbose: bool,
    quiet: bool,
    config: Path | None,
    store: str | None,
    audit: str | None,
    audit_days: float,
    command: str = "proxy",
    found: Sequence[tuple[str, str]] = (),
) -> Callable[[], int]:
    """Create the proxy from values of flags; return what serves it until it is stopped, and returns the exit status.

    ``found``: names and URLs of model servers that run on this machine, the upstream's first; without an upstream they are looked
    for. Raises ConfigurationError.
    """
    reject_flags_as_keys(upstream_key=values["upstream_key"], api_key=values["api_key"])
    if config is not None and values.get("workers", 1) > 1:
        raise ConfigurationError("--config needs --workers 1: hooks and approvals belong to one process.")
    from patchbay.cli.request_lines import show_requests
    from patchbay.doctor.model_servers import choose_server, warning_of_upstream
    from patchbay.proxy import create_app
    from patchbay.server.request_log import RequestLog, worker_file
    from patchbay.server.runtime import serve

    if not upstream:
        found = [(str(each), each.url) for each in choose_server()]
    database = None if store == MEMORY else store
    settings = build(ProxySettings, values, upstream=upstream or found[0][1], response_store=database)
    text = text_options(values)
    options = build(ServeOptions, values, log=verbosity(verbose=verbose, quiet=quiet))
    governance: Governance | None = None
    if config is not None:
        _warn_of_servers(config)
        governance = make_governance(config, audit, audit_days, store=None if store == MEMORY else store or _STORE)
    key_problem = _key_problem(settings)
    if settings.keep_turns is not None and options.workers > 1:
        raise ConfigurationError("--keep-turns needs --workers 1: the console and its turns belong to one process.")
    no_events = "each of its workers has its own: start it with --workers 1." if options.workers > 1 else key_problem

    def make_app(worker: int) -> ProxyApp:
        given = {each.name: getattr(settings, each.name) for each in fields(settings) if each.name != "connect_timeout"}
        if settings.log_file is not None:
            given["log_file"] = worker_file(settings.log_file, worker)
        repeats = values["max_identical_client_calls"]
        app = create_app(**given, options=text, governance=governance, max_identical_client_calls=repeats)
        show_requests(app, options)
        app.no_events = no_events
        app.examine = examination_of(settings)
        return app

    app = make_app(0)  # errors are reported before anything runs
    if settings.log_file is not None:
        for worker in range(1, options.workers):
            RequestLog(worker_file(settings.log_file, worker), max_size=settings.max_log_size, redact=Redactor())
    reject_itself(settings.upstream, options.host, options.port)
    warnings = [key_problem, "" if found else warning_of_upstream(settings.upstream)]

    def announce(url: str) -> None:
        warn = partial(_logger.warning, "%s") if options.log_format == "json" else _warn
        if settings.api_key is None and not is_loopback(options.host):
            warn(
                f"{options.host} is reachable from other machines and there is no --api-key: anyone there can use this proxy and "
                "its upstream."
            )
        _announce(command, url, settings, governance, found, watchable=app.has_console and not no_events)
        for each in filter(None, warnings):
            warn(f"{each.removesuffix('.')}.")

    return partial(serve, make_app if options.workers > 1 else lambda _worker: app, options, ready=announce)


def _key_problem(settings: ProxySettings) -> str:
    """Say why the key is no token of ``patchbay tail``, "" if it is one."""
    try:
        ToolsSettings(token=settings.api_key)
    except ConfigurationError as error:
        return f"patchbay tail needs a longer --api-key: {error}"
    return ""


def _warn_of_servers(config: Path) -> None:
    """Warn that the proxy does not mount MCP servers. Raises ConfigurationError."""
    if (path := config.expanduser()).is_file() and mcp_servers(Path(NONE), path):
        _warn(f"{config}: mcpServers are for patchbay serve: see its --upstream.")


def _warn(text: str) -> None:
    print(f"patchbay: warning: {text}", file=sys.stderr)


def _announce(
    command: str,
    url: str,
    settings: ProxySettings,
    governance: Governance | None,
    found: Sequence[tuple[str, str]],
    *,
    watchable: bool,
) -> None:
    """Print the addresses, the client's base URL first. ``found``: names and URLs of model servers, the upstream's first."""
    bold, dim, plain = styles(sys.stdout)
    print(f"patchbay {command} listening on {bold}{url}{settings.base_path}{plain}")
    print(f"  {dim}upstream{plain} {settings.upstream}{f' ({found[0][0]})' if found else ''}")
    for name, other in found[1:]:
        print(f"  {dim}also found{plain} {name}: --upstream {other}")
    if governance is not None:
        print(f"  {dim}hooks{plain} {governance.summary}")
    if watchable:
        print_monitors(url, governance, needs_token=settings.api_key is not None)
    sys.stdout.flush()
