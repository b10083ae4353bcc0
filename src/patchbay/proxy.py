"""The proxy as an ASGI application: ``create_app``. ``patchbay proxy`` serves the same.

from patchbay.proxy import create_app

app = create_app("http://127.0.0.1:11434/v1", api_key="…")       # uvicorn module:app
outer.mount("/models", create_app("http://127.0.0.1:11434/v1"))   # or under a path of another application
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from patchbay.errors import ConfigurationError
from patchbay.server.proxy import ProxyApp
from patchbay.server.settings import MIB, ProxySettings, parse_size

if TYPE_CHECKING:
    from patchbay.models.options import TextOptions
    from patchbay.server.governance import Governance
    from patchbay.server.proxy import AdminApp

__all__ = ["ProxyApp", "create_app"]


def create_app(
    upstream: str,
    *,
    upstream_key: str | None = None,
    upstream_headers: Mapping[str, str] | None = None,
    api_key: str | None = None,
    base_path: str = "/v1",
    cors: bool = False,
    allow_unguarded: bool = False,
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    max_body_size: int | str = 10 * MIB,
    log_file: str | os.PathLike[str] | None = None,
    max_log_size: int | str = 100 * MIB,
    upstream_timeout: float = 600.0,
    heartbeat: float = 15.0,
    response_store: str | None = None,
    response_days: float = 30.0,
    keep_turns: float | None = None,
    keep_content: bool = False,
    options: TextOptions | None = None,
    governance: Governance | None = None,
    max_identical_client_calls: int = 0,
    **text_options: Any,
) -> ProxyApp:
    """Return the proxy before ``upstream`` (a base URL such as ``http://127.0.0.1:11434/v1``) as an ASGI application.

    ``upstream_key`` is the key for the upstream; without it each client's own key is forwarded. Clients must send ``api_key``
    if it is set. ``allowed_hosts`` are names by which the proxy may be reached beside those of this machine, ``allowed_origins``
    web pages that may use it; with ``cors`` all may. Sizes are bytes, or text such as "10MiB". ``upstream_timeout`` is the
    maximum of seconds without data from the upstream (0: no limit); after ``heartbeat`` seconds an idle stream gets a comment
    line. ``options``, or its fields as keywords (``tools="text"``, ``repair_rounds=1``, …), say how tools and text are treated.

    Responses of the Responses API are stored for ``response_days`` days (0: for ever) in the database at ``response_store``, a
    URL such as ``sqlite:///responses.db``; without one the last 1,000 stay in memory. Ended turns are kept there too, for
    ``keep_turns`` seconds if that is given, with messages and texts only if ``keep_content``.

    With ``governance`` (``patchbay.server.Governance``) its hooks see chat completions, and ``/api/approvals``, ``/api/events``,
    ``/api/audit`` and ``/api/media`` are served to programs of this machine. Where a hook checks requests to models, those that
    it does not see are refused, unless ``allow_unguarded``.

    A call of a client's tool that gave the same result ``max_identical_client_calls`` times in a turn is answered here from then
    on (0: never).

    Raises ConfigurationError. Where no lifespan reaches the application, close it with ``await app.aclose()``.
    """
    settings = ProxySettings(
        upstream=upstream,
        upstream_key=upstream_key,
        upstream_headers=dict(upstream_headers or {}),
        api_key=api_key,
        base_path=base_path,
        cors=cors,
        allow_unguarded=allow_unguarded,
        allowed_hosts=tuple(allowed_hosts),
        allowed_origins=tuple(allowed_origins),
        max_body_size=parse_size(max_body_size) if isinstance(max_body_size, str) else max_body_size,
        log_file=os.fspath(log_file) if log_file is not None else None,
        max_log_size=parse_size(max_log_size) if isinstance(max_log_size, str) else max_log_size,
        upstream_timeout=upstream_timeout,
        heartbeat=heartbeat,
        response_store=response_store,
        response_days=response_days,
        keep_turns=keep_turns,
        keep_content=keep_content,
    )
    if governance is not None or max_identical_client_calls:
        from patchbay.server.app import GovernedProxy  # imports a web framework
        from patchbay.server.governance import Governance

        return GovernedProxy(
            settings,
            _options(options, text_options),
            governance or Governance(),
            max_identical_client_calls=max_identical_client_calls,
        )
    from patchbay.models.capabilities import Capabilities
    from patchbay.models.exchange import Exchange
    from patchbay.server.models_view import LearntModels

    capabilities, text = Capabilities(), _options(options, text_options)
    learnt = LearntModels(capabilities, text)
    return ProxyApp(
        settings,
        lambda body, encoder=None: Exchange(body, text, capabilities, encoder),
        learnt=learnt,
        import_admin=_import_admin,
    )


def _import_admin() -> Callable[[ProxyApp], AdminApp]:
    from patchbay.server.app import ProxyAdmin  # imports a web framework

    return ProxyAdmin


def _options(options: TextOptions | None, fields: dict[str, Any]) -> TextOptions:
    from patchbay.models.options import make_options

    if options is None:
        return make_options("create_app", fields)
    if fields:
        raise ConfigurationError(f"give either options or its fields, not both: {', '.join(sorted(fields))}.")
    return options
