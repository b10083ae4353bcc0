"""``patchbay proxy``: its flags. What is done with them is in ``proxy_process``; the proxy itself is ``patchbay.proxy``.

The proxy does not run in the process that parsed its flags, but in a fresh interpreter that replaces it (same process id): the
parser and its libraries would stay in memory for as long as the proxy lives, a quarter of all it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from patchbay.cli import oversight_flags as governing
from patchbay.cli import upstream_flags as flags
from patchbay.cli.proxy_process import Plan, become_proxy
from patchbay.errors import ConfigurationError

_LOG = "Log"


def proxy(
    upstream: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar=["UPSTREAM_BASE_URL", "PATCHBAY_UPSTREAM"],
            show_default=False,
            help="Base URL of the OpenAI-compatible server, such as http://127.0.0.1:11434/v1. Required.",
        ),
    ] = "",
    upstream_key: flags.UpstreamKey = None,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            envvar=["PORT", "PATCHBAY_PORT"],
            rich_help_panel=flags.SERVER,
            help="Port to listen on; 0 takes a free one.",
        ),
    ] = 8787,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST", envvar=["HOST", "PATCHBAY_HOST"], rich_help_panel=flags.SERVER, help="Address to listen on."
        ),
    ] = "127.0.0.1",
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar=["PROXY_API_KEY", "PATCHBAY_API_KEY"],
            rich_help_panel=flags.SERVER,
            help="Key that clients must send as their bearer token. Better given by the environment, as above.",
        ),
    ] = None,
    base_path: Annotated[
        str,
        typer.Option(metavar="PATH", envvar="PATCHBAY_BASE_PATH", rich_help_panel=flags.SERVER, help="Path of the API here."),
    ] = "/v1",
    cors: Annotated[
        bool,
        typer.Option("--cors", envvar="PATCHBAY_CORS", rich_help_panel=flags.SERVER, help="Let web pages of any origin in."),
    ] = False,
    max_body_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            envvar="PATCHBAY_MAX_BODY_SIZE",
            rich_help_panel=flags.SERVER,
            help="Largest body of a chat request: 10MiB, 10mb, 1048576.",
        ),
    ] = "10MiB",
    upstream_timeout: flags.UpstreamTimeout = 600.0,
    drain_timeout: flags.DrainTimeout = 30,
    verbose: flags.Verbose = False,
    quiet: flags.Quiet = False,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            metavar="N",
            envvar="PATCHBAY_WORKERS",
            rich_help_panel=flags.SERVER,
            help="Number of processes; one per core is what a busy proxy wants.",
        ),
    ] = 1,
    tools: flags.Tools = flags.ToolMode.auto,
    format: flags.FormatName = "auto",
    repair_rounds: flags.RepairRounds = 0,
    xml_tool: flags.XmlTools = None,
    tag: flags.CallTag = "tool_call",
    no_examples: flags.NoExamples = False,
    system_injection: flags.Injection = flags.SystemInjection.merge,
    reasoning_tag: flags.ReasoningTag = "think",
    no_reasoning: flags.NoReasoning = False,
    config: governing.Config = None,
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="PATCHBAY_STORE",
            rich_help_panel="Hooks, approvals, audit",
            help="With --config: where requests for approval and the audit are kept; memory keeps them until the proxy ends.",
        ),
    ] = "sqlite:///proxy.db",
    audit: governing.Audit = None,
    audit_days: governing.AuditDays = 90.0,
    log_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=["PROXY_LOG_FILE", "PATCHBAY_LOG_FILE"],
            rich_help_panel=_LOG,
            help="Append requests and answers to this file, as JSON lines, without keys or headers.",
        ),
    ] = None,
    max_log_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            envvar="PATCHBAY_MAX_LOG_SIZE",
            rich_help_panel=_LOG,
            help="Most that FILE and FILE.1 take together; the older half goes first.",
        ),
    ] = "100MiB",
) -> None:
    """Give every OpenAI client working tool calls, with any model server behind it.

    Point a client's base URL here instead of at the model server. Chat completions with tools work, whether or not the model
    knows tools; everything else passes through unchanged.

    [bold]Examples[/bold]

      patchbay proxy --upstream http://127.0.0.1:11434/v1

      UPSTREAM_API_KEY=… patchbay proxy --upstream https://llm.example.com/v1 --tools text --port 9000

      patchbay proxy --upstream http://127.0.0.1:11434/v1 --config hooks.toml

      PROXY_API_KEY=… patchbay proxy --upstream http://gpu:8000/v1 --host 0.0.0.0 --workers 4 --log-file proxy.jsonl
    """  # fmt: skip
    if not upstream:
        raise ConfigurationError("--upstream is missing: the model server's base URL, by flag or as UPSTREAM_BASE_URL.")
    flags.refuse_flags_as_keys(upstream_key=upstream_key, api_key=api_key)
    if config is not None and workers > 1:
        raise ConfigurationError("--config needs --workers 1: hooks and approvals are those of one process.")
    become_proxy(
        Plan(
            app={
                "upstream": upstream,
                "upstream_key": upstream_key,
                "api_key": api_key,
                "base_path": base_path,
                "cors": cors,
                "max_body_size": max_body_size,
                "log_file": None if log_file is None else str(log_file),
                "max_log_size": max_log_size,
                "upstream_timeout": upstream_timeout,
                "tools": tools.value,
                "format": format,
                "tool_call_tag": tag,
                "include_examples": not no_examples,
                "system_injection": system_injection.value,
                "reasoning": not no_reasoning,
                "reasoning_tag": reasoning_tag,
                "repair_rounds": repair_rounds,
                "xml_tools": flags.xml_tools(xml_tool),
            },
            oversight=None
            if config is None
            else {"config": str(config), "audit": audit, "days": audit_days, "store": None if store == "memory" else store},
            serve={
                "host": host,
                "port": port,
                "workers": workers,
                "drain_timeout": drain_timeout,
                "log": flags.verbosity(verbose=verbose, quiet=quiet),
            },
        )
    )
