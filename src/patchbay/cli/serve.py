"""``patchbay serve``: its flags, what it prints, and its exit status. The server itself is ``patchbay.server.tools``."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from patchbay.cli import oversight_flags as governing
from patchbay.cli import realtime_flags as live
from patchbay.cli import upstream_flags as flags
from patchbay.cli.colour import in_colour
from patchbay.errors import ConfigurationError

PORT = 48911
"""Where the seeds' clients look for the server."""

_LONGEST_URL = 256 * 1024

_logger = logging.getLogger(__name__)

_ACCESS = "Who may come in"
_TOOLS = "Tools"
_MODELS = "Models that are given the tools"


def serve(
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            envvar=["MAIN_SERVER_PORT", "PATCHBAY_SERVE_PORT"],
            help="Port to listen on; 0 takes a free one.",
        ),
    ] = PORT,
    host: Annotated[str, typer.Option(metavar="HOST", envvar="PATCHBAY_SERVE_HOST", help="Address to listen on.")] = "127.0.0.1",
    roles: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            envvar="PATCHBAY_ROLES",
            help="The assistants that tools are registered for, with commas between them.",
        ),
    ] = "default",
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="PATCHBAY_STORE",
            help="Where registrations are kept: sqlite:///tools.db, a file, postgresql://user@host/name; "
            "memory keeps them until the server ends.",
        ),
    ] = "sqlite:///tools.db",
    drain_timeout: flags.DrainTimeout = 30,
    verbose: flags.Verbose = False,
    quiet: flags.Quiet = False,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="PATCHBAY_TOKEN_FILE",
            rich_help_panel=_ACCESS,
            help="File of mode 0600 with the bearer token. Who shows it may register tools of plugins; "
            "without the file everybody may.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            envvar=["PATCHBAY_ALLOWED_HOSTS", "NEKO_TRUSTED_HOSTS"],
            rich_help_panel=_ACCESS,
            help="Host header to accept beside those of this machine: tools.example.com, *.example.com.",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            envvar=["PATCHBAY_ALLOWED_ORIGINS", "NEKO_TRUSTED_ORIGINS"],
            rich_help_panel=_ACCESS,
            help="Web pages to let in beside those of this machine: https://app.example.com.",
        ),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            envvar="PATCHBAY_PROXIES",
            rich_help_panel=_ACCESS,
            help="Address of a reverse proxy. What comes through it must show the token.",
        ),
    ] = None,
    need_secrets: Annotated[
        bool,
        typer.Option(
            "--need-secrets",
            envvar="PATCHBAY_NEED_SECRETS",
            rich_help_panel=_ACCESS,
            help="Let nobody replace or remove a tool without its secret or the token.",
        ),
    ] = False,
    callback_ports: Annotated[
        str | None,
        typer.Option(
            metavar="PORTS",
            envvar="PATCHBAY_CALLBACK_PORTS",
            rich_help_panel=_TOOLS,
            help="All ports that callbacks may have: 9000-9100,48916. Without it any but this server's own.",
        ),
    ] = None,
    strict_arguments: Annotated[
        bool,
        typer.Option(
            "--strict-arguments",
            envvar="PATCHBAY_STRICT_ARGUMENTS",
            rich_help_panel=_TOOLS,
            help="Answer calls that do not fit the tool's schema with an error instead of passing them on.",
        ),
    ] = False,
    max_result_size: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            envvar="PATCHBAY_MAX_RESULT_SIZE",
            rich_help_panel=_TOOLS,
            help="Most that is read of a callback's answer.",
        ),
    ] = "1MiB",
    config: governing.Config = None,
    audit: governing.Audit = None,
    audit_days: governing.AuditDays = 90.0,
    lease: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            envvar="PATCHBAY_LEASE",
            rich_help_panel=_TOOLS,
            help="How often to see whether callbacks still answer; 0 is never.",
        ),
    ] = 2.0,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=["UPSTREAM_BASE_URL", "PATCHBAY_UPSTREAM"],
            rich_help_panel=_MODELS,
            help="Base URL of an OpenAI-compatible server, such as http://127.0.0.1:11434/v1. "
            "Its models get the tools, at /v1/chat/completions here.",
        ),
    ] = None,
    upstream_key: flags.UpstreamKey = None,
    upstream_timeout: flags.UpstreamTimeout = 600.0,
    max_iterations: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            envvar="PATCHBAY_MAX_ITERATIONS",
            rich_help_panel=_MODELS,
            help="How often a model is asked for one answer, with the results of its calls.",
        ),
    ] = 10,
    images: Annotated[
        bool,
        typer.Option(
            "--images",
            envvar="PATCHBAY_IMAGES",
            rich_help_panel=_MODELS,
            help="The models take images: show them those that tools return.",
        ),
    ] = False,
    realtime: live.Model = None,
    realtime_url: live.Url = None,
    realtime_key: live.Key = None,
    realtime_voice: live.Voice = None,
    realtime_calls: live.Calls = None,
    tools: flags.Tools = flags.ToolMode.auto,
    format: flags.FormatName = "auto",
    repair_rounds: flags.RepairRounds = 0,
    xml_tool: flags.XmlTools = None,
    tag: flags.CallTag = "tool_call",
    no_examples: flags.NoExamples = False,
    system_injection: flags.Injection = flags.SystemInjection.merge,
    reasoning_tag: flags.ReasoningTag = "think",
    no_reasoning: flags.NoReasoning = False,
) -> None:
    """Serve the registry of tools: other processes register theirs while it runs.

    Tools come in by POST /api/tools/register, and are called at the URL that they were registered with. GET /openapi.json
    describes all of it. Only programs on this machine are let in. With --upstream, clients of OpenAI's API can be pointed at /v1
    here: the models answer with the tools' help. With --realtime, or --upstream, a browser or a script can hold a live session at
    the WebSocket /api/sessions/ROLE.

    [bold]Examples[/bold]

      patchbay serve

      patchbay serve --roles ann,ben --store sqlite:////var/lib/patchbay/tools.db

      patchbay serve --upstream http://127.0.0.1:11434/v1

      patchbay serve --upstream http://127.0.0.1:11434/v1 --config hooks.toml

      OPENAI_API_KEY=... patchbay serve --realtime openai/gpt-realtime

      MAIN_SERVER_PORT=9000 patchbay serve --token-file ~/.config/patchbay/token --strict-arguments
    """  # fmt: skip
    from patchbay.cli.format_flag import given_format
    from patchbay.cli.proxy_process import refuse_itself
    from patchbay.models.options import TextOptions
    from patchbay.registrations import RegistrationStore
    from patchbay.server.serve import ServeOptions
    from patchbay.server.settings import ProxySettings, parse_size
    from patchbay.server.tools import ToolsSettings, create_tools_app
    from patchbay.server.tools.chat.settings import ChatSettings
    from patchbay.server.tools.settings import listed, read_token
    from patchbay.server.workers import serve as run

    log = flags.verbosity(verbose=verbose, quiet=quiet)
    names = tuple(dict.fromkeys(listed(roles)))
    if not names:
        raise ConfigurationError("--roles needs at least one name.")
    settings = ToolsSettings(
        token=read_token(token_file.expanduser()) if token_file is not None else None,
        allowed_hosts=listed(allow_host or ()),
        allowed_origins=listed(allow_origin or ()),
        proxies=listed(proxy or ()),
        callback_ports=read_ports(callback_ports) if callback_ports is not None else None,
        strict_arguments=strict_arguments,
        needs_secret=need_secrets,
        max_result_size=parse_size(max_result_size),
        lease=lease,
    )
    # Read when that package is first imported: the instructions of a session stand in its URL.
    os.environ.setdefault("WEBSOCKETS_MAX_LINE_LENGTH", str(_LONGEST_URL))
    flags.refuse_flags_as_keys(realtime_key=realtime_key)
    live_model = live.realtime_settings(realtime, realtime_url, realtime_key, realtime_voice, realtime_calls)
    about_key = ""
    if live_model is not None:
        from patchbay.server.sessions.keys import at_start

        about_key = at_start(live_model)
    proxied = chat = None
    if upstream:
        flags.refuse_flags_as_keys(upstream_key=upstream_key)
        proxied = ProxySettings(upstream, upstream_key=upstream_key, upstream_timeout=upstream_timeout)
        refuse_itself(proxied.upstream, host, port)
        options = TextOptions(
            tools=tools.value,
            format=given_format(format),
            tool_call_tag=tag,
            include_examples=not no_examples,
            system_injection=system_injection.value,
            reasoning=not no_reasoning,
            reasoning_tag=reasoning_tag,
            repair_rounds=repair_rounds,
            xml_tools=flags.xml_tools(xml_tool),
        )
        chat = ChatSettings(options, max_iterations=max_iterations, attachments=("image",) if images else ())
    kept = None if store == "memory" else RegistrationStore(store)
    oversight = governing.make_oversight(config, audit, audit_days, store=store if kept is not None else None)
    app = create_tools_app(
        names, store=kept, settings=settings, upstream=proxied, chat=chat, realtime=live_model, oversight=oversight
    )
    status = run(
        lambda: app,
        ServeOptions(host=host, port=port, drain_timeout=drain_timeout, log=log),
        ready=lambda url: _announce(
            url,
            names,
            store if kept is None else kept.database.shown,
            proxied.upstream if proxied is not None else None,
            realtime,
            oversight.told if config is not None else None,
            about_key,
        ),
        stopping=lambda calls: _say_what_a_stop_waits_for(calls, drain_timeout),
    )
    sys.exit(status)


def read_ports(text: str) -> frozenset[int]:
    """Read ``9000-9100,48916``; raises ConfigurationError."""
    ports: set[int] = set()
    for entry in text.split(","):
        first, dash, last = entry.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isdecimal() and end.isascii() and 0 < int(end) < 65536 for end in ends) or int(ends[0]) > int(ends[1]):
            raise ConfigurationError(f"{entry.strip()!r} is no port and no range of ports: write 9000-9100,48916.")
        ports.update(range(int(ends[0]), int(ends[1]) + 1))
    return frozenset(ports)


def _announce(
    url: str, roles: tuple[str, ...], store: str, upstream: str | None, realtime: str | None, hooks: str | None, about_key: str
) -> None:
    """Say where the server is: what is to be put into a client comes first."""
    bold, dim, plain = ("\x1b[1m", "\x1b[2m", "\x1b[0m") if in_colour(sys.stdout) else ("", "", "")
    print(f"patchbay serve listening on {bold}{url}{plain}")
    print(f"  {dim}tools{plain} {url}/api/tools")
    print(f"  {dim}roles{plain} {', '.join(roles)}")
    print(f"  {dim}kept in{plain} {store}")
    if hooks is not None:
        print(f"  {dim}hooks{plain} {hooks}")
    if realtime or upstream:
        models = " or ".join(filter(None, (realtime, upstream and f"the models of {upstream}")))
        print(f"  {dim}sessions{plain} ws{url.removeprefix('http')}/api/sessions/{quote(roles[0])}, with {models}")
    print(f"  {dim}chat{plain} {f'{url}/v1, with the models of {upstream}' if upstream else 'none (--upstream)'}", flush=True)
    if about_key:
        _logger.warning("%s", about_key)


def _say_what_a_stop_waits_for(calls: int, seconds: int) -> None:
    under_way = "1 call" if calls == 1 else f"{calls} calls"
    print(f"stopping: {under_way} under way, up to {seconds} s; press Ctrl-C again to end at once", file=sys.stderr, flush=True)
