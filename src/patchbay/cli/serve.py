"""``patchbay serve``: its flags, its banner, and its exit status. The server itself is ``patchbay.server``."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from patchbay._flags import build
from patchbay.cli.options import SERVING, Audit, AuditDays, Config, Quiet, Verbose, reject_flags_as_keys, verbosity, with_flags
from patchbay.cli.terminal import plural, styles
from patchbay.errors import ConfigurationError
from patchbay.models.options import TextOptions
from patchbay.server.settings import ProxySettings, ServeOptions, ToolsSettings, listed

if TYPE_CHECKING:
    from patchbay.realtime.config import RealtimeSettings

PORT = 48911
"""The default port of clients of N.E.K.O."""

_MAX_URL = 256 * 1024
_MODELS = "Models with these tools"
_SESSIONS = "Live sessions"

_logger = logging.getLogger(__name__)


def _session_flag(name: str, help: str, **options: Any) -> Any:
    variable = f"PATCHBAY_{name.removeprefix('--').replace('-', '_').upper()}"
    return typer.Option(name, envvar=variable, rich_help_panel=_SESSIONS, help=help, **options)


@with_flags(
    (SERVING, ServeOptions, "drain_timeout"),
    ("Access", ToolsSettings, "token", "allowed_hosts", "allowed_origins", "proxies", "needs_secret"),
    ("Tools", ToolsSettings, "callback_ports", "strict_arguments", "max_result_size", "lease"),
    (_MODELS, ProxySettings, "upstream_key", "upstream_timeout"),
    ("Tools and text", TextOptions),
)
def serve(
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="PORT",
            envvar=["MAIN_SERVER_PORT", "PATCHBAY_SERVE_PORT"],
            help="Port to listen on; 0 picks a free one.",
        ),
    ] = PORT,
    host: Annotated[str, typer.Option(metavar="HOST", envvar="PATCHBAY_SERVE_HOST", help="Address to listen on.")] = "127.0.0.1",
    roles: Annotated[str, typer.Option(metavar="NAMES", envvar="PATCHBAY_ROLES", help="Comma-separated role names.")] = "default",
    store: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="PATCHBAY_STORE",
            help="Database of registrations: sqlite:///tools.db, a file, postgresql://user@host/name; memory: lost at exit.",
        ),
    ] = "sqlite:///tools.db",
    verbose: Verbose = False,
    quiet: Quiet = False,
    config: Config = None,
    audit: Audit = None,
    audit_days: AuditDays = 90.0,
    upstream: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=["UPSTREAM_BASE_URL", "PATCHBAY_UPSTREAM"],
            rich_help_panel=_MODELS,
            help="Base URL of an OpenAI-compatible server, such as http://127.0.0.1:11434/v1. Its models get the tools at "
            "/v1/chat/completions.",
        ),
    ] = None,
    max_iterations: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", envvar="PATCHBAY_MAX_ITERATIONS", rich_help_panel=_MODELS, help="Maximum model requests per turn."
        ),
    ] = 10,
    images: Annotated[
        bool,
        typer.Option(
            "--images", envvar="PATCHBAY_IMAGES", rich_help_panel=_MODELS, help="Send images that tools return to the models."
        ),
    ] = False,
    realtime: Annotated[
        str | None,
        _session_flag(
            "--realtime",
            "Realtime model of the sessions at /api/sessions/ROLE: openai/gpt-realtime, gemini/NAME, glm/NAME, qwen/NAME, "
            "stepfun/NAME.",
            metavar="MODEL",
        ),
    ] = None,
    realtime_url: Annotated[
        str | None,
        _session_flag("--realtime-url", "Its server instead of the provider's: ws://127.0.0.1:9000/v1/realtime.", metavar="URL"),
    ] = None,
    realtime_key: Annotated[
        str | None,
        _session_flag(
            "--realtime-key",
            "Its API key. Default: the provider's own variable (OPENAI_API_KEY, ...), which is never sent to another "
            "--realtime-url. Prefer the environment variable: flags are visible in the process list.",
            metavar="KEY",
        ),
    ] = None,
    realtime_voice: Annotated[str | None, _session_flag("--realtime-voice", "Its voice.", metavar="NAME")] = None,
    realtime_calls: Annotated[
        int | None,
        _session_flag("--realtime-calls", "Maximum calls of a session in any 15 seconds.", metavar="N", min=1, show_default="4"),
    ] = None,
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

      OPENAI_API_KEY=... patchbay serve --realtime openai/gpt-realtime

      MAIN_SERVER_PORT=9000 patchbay serve --token-file ~/.config/patchbay/token --strict-arguments
    """  # fmt: skip
    from patchbay.cli.serving import MEMORY, make_governance, reject_itself, text_options
    from patchbay.registrations import RegistrationStore
    from patchbay.server.app import create_tools_app
    from patchbay.server.chat.turn import ChatSettings
    from patchbay.server.runtime import serve as run

    options = build(ServeOptions, values, host=host, port=port, log=verbosity(verbose=verbose, quiet=quiet))
    role_names = tuple(dict.fromkeys(listed(roles)))
    if not role_names:
        raise ConfigurationError("--roles needs at least one name.")
    settings = build(ToolsSettings, values)
    # Read when websockets is first imported: the URL of a session contains its instructions.
    os.environ.setdefault("WEBSOCKETS_MAX_LINE_LENGTH", str(_MAX_URL))
    reject_flags_as_keys(realtime_key=realtime_key)
    sessions = _realtime_settings(realtime, realtime_url, realtime_key, realtime_voice, realtime_calls)
    key_warning = ""
    if sessions is not None:
        from patchbay.server.live_sessions.app import at_start

        key_warning = at_start(sessions)
    proxied = chat = None
    if upstream:
        reject_flags_as_keys(upstream_key=values["upstream_key"])
        proxied = build(ProxySettings, {name: values[name] for name in ("upstream_key", "upstream_timeout")}, upstream=upstream)
        reject_itself(proxied.upstream, host, port)
        chat = ChatSettings(text_options(values), max_iterations=max_iterations, attachments=("image",) if images else ())
    registrations = None if store == MEMORY else RegistrationStore(store)
    governance = make_governance(config, audit, audit_days, store=store if registrations is not None else None)
    app = create_tools_app(
        role_names, store=registrations, settings=settings, upstream=proxied, chat=chat, realtime=sessions, governance=governance
    )

    def announce(url: str) -> None:
        """Print the addresses."""
        bold, dim, plain = styles(sys.stdout)
        print(f"patchbay serve listening on {bold}{url}{plain}")
        print(f"  {dim}tools{plain} {url}/api/tools")
        print(f"  {dim}roles{plain} {', '.join(role_names)}")
        print(f"  {dim}store{plain} {store if registrations is None else registrations.database.shown}")
        if config is not None:
            print(f"  {dim}hooks{plain} {governance.summary}")
        models = f"the models of {proxied.upstream}" if proxied is not None else ""
        if realtime or models:
            path = f"/api/sessions/{quote(role_names[0])}"
            print(
                f"  {dim}sessions{plain} ws{url.removeprefix('http')}{path}, with {' or '.join(filter(None, (realtime, models)))}"
            )
        print(f"  {dim}chat{plain} {f'{url}/v1, with {models}' if models else 'none (--upstream)'}", flush=True)
        if key_warning:
            _logger.warning("%s", key_warning)

    def draining(calls: int) -> None:
        running = f"{plural(calls, 'call')} running, up to {options.drain_timeout} s"
        print(f"stopping: {running}; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    sys.exit(run(lambda: app, options, ready=announce, stopping=draining))


def _realtime_settings(
    model: str | None, url: str | None, key: str | None, voice: str | None, calls: int | None
) -> RealtimeSettings | None:
    """Create the settings of realtime sessions, None without a model. Raises ConfigurationError."""
    if not model:
        for name, value in (("url", url), ("key", key), ("voice", voice), ("calls", calls)):
            if value:
                raise ConfigurationError(f"--realtime-{name} needs --realtime MODEL.")
        return None
    from patchbay.realtime.config import RealtimeLimits, RealtimeSettings

    limits = RealtimeLimits() if calls is None else RealtimeLimits(flood_calls=calls)
    return RealtimeSettings(model=model, url=url or None, api_key=key or None, voice=voice or None, limits=limits)
