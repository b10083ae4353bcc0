"""Names the flags and variables that give the key of a realtime model, for messages of the server.

The rule which key a session is opened with is ``patchbay.realtime.providers.registry.key_for``.
"""

from __future__ import annotations

from typing import Final

from patchbay.errors import ConfigurationError, UpstreamError
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.registry import NoKeyError, dialect_for, key_for, key_in_environment

_FLAG: Final = "--realtime-key"
_REFUSALS: Final = (401, 403)


def check_key(settings: RealtimeSettings, *, is_servers_own: bool) -> None:
    """Raise ConfigurationError where a session would have no key. ``is_servers_own``: its model is the one of the flags."""
    try:
        key_for(settings)
    except NoKeyError as error:
        flag = f", or start it with {_FLAG}" if is_servers_own else ""
        raise ConfigurationError(
            f"There is no key for {dialect_for(settings).provider}: set {error.variables} in the server's environment{flag}."
        ) from None


def at_start(settings: RealtimeSettings) -> str:
    """Return what a server should say of the key of its realtime model when it starts, "" for nothing."""
    try:
        check_key(settings, is_servers_own=True)
    except ConfigurationError as error:
        return f"Sessions with {settings.model} will fail. {error}"
    found = key_in_environment(dialect_for(settings))
    if found is None or key_for(settings):
        return ""
    where = (settings.url or "").partition("?")[0]  # what is behind it may be a secret
    return f"{found[0]} is not sent to {where}: it is for the provider's own servers. {_FLAG} gives a key for this one."


def with_reason(error: UpstreamError, settings: RealtimeSettings) -> UpstreamError:
    """Return the refusal of a model's server; one that nobody showed a key to says so."""
    if error.upstream_status not in _REFUSALS or key_for(settings):
        return error
    return UpstreamError(
        f"{error} (No key was sent: the environment's is for the provider's own servers; patchbay serve {_FLAG} gives another.)",
        upstream_status=error.upstream_status,
        body=error.body,
    )
