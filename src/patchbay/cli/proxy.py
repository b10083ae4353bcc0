"""``patchbay proxy``: its flags. The proxy itself runs in a fresh process (``serving``)."""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
from patchbay.cli.serving import become_proxy
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.server.settings import ProxySettings, ServeOptions


@with_flags(
    ("Upstream", ProxySettings, "upstream_key", "upstream_timeout"),
    (SERVING, ServeOptions),
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
    ),
    ("Tools and text", TextOptions),
    (GOVERNANCE, ProxySettings, "allow_unguarded"),
    ("Log", ProxySettings, "log_file", "max_log_size"),
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
    print_env: Annotated[
        str | None,
        typer.Option(
            metavar="CLIENT",
            show_default=False,
            rich_help_panel=SERVING,
            help=f"Print the settings that point a client at this proxy, and exit: {', '.join(CLIENTS)}.",
        ),
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
    config: Config = None,
    store: Annotated[
        str | None,
        store_option(
            "Database of stored responses, approval requests and the audit log; memory: lost when the proxy ends. "
            "Default: memory, with --config sqlite:///proxy.db for the last two.",
            show_default=False,
            rich_help_panel=SERVING,
        ),
    ] = None,
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
        settings = client_settings(print_env, origin=origin_of(values["host"], values["port"]), base_path=values["base_path"])
        typer.echo(settings.lines(), nl=False)
        return
    reject_flags_as_keys(upstream_key=values["upstream_key"], api_key=values["api_key"])
    if config is not None and values["workers"] > 1:
        raise ConfigurationError("--config needs --workers 1: hooks and approvals belong to one process.")
    found: list[tuple[str, str]] = []
    if not upstream:
        from patchbay.cli.model_servers import choose_server

        found = [(str(each), each.url) for each in choose_server()]
        upstream = found[0][1]
    values |= {"upstream": upstream, "found": found, "log": verbosity(verbose=verbose, quiet=quiet), "store": store}
    become_proxy({**values, "config": None if config is None else str(config), "audit": audit, "audit_days": audit_days})
