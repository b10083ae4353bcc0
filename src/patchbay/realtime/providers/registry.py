"""Registry of providers: finds the dialect and the key for a session's settings."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import urlsplit

from patchbay.errors import ConfigurationError
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.base import Dialect
from patchbay.realtime.providers.event_providers import GLMDialect, OpenAIDialect, QwenDialect, StepFunDialect
from patchbay.realtime.providers.gemini import GeminiDialect

PROVIDERS: Final[tuple[type[Dialect], ...]] = (OpenAIDialect, GeminiDialect, GLMDialect, QwenDialect, StepFunDialect)
"""Dialects that a model's prefix or ``provider`` can name."""

_NAMED: Final = {name: dialect for dialect in PROVIDERS for name in (dialect.provider, *dialect.other_names)}
_KNOWN: Final = ", ".join(dialect.provider for dialect in PROVIDERS)


class NoKeyError(ConfigurationError):
    """No key for a provider's own server. ``variables`` names the environment variables: "A or B"."""

    def __init__(self, dialect: type[Dialect]) -> None:
        self.variables = " or ".join(dialect.key_variables)
        super().__init__(f"There is no key for {dialect.provider}: set {self.variables}, or give api_key.")


def dialect_for(settings: RealtimeSettings) -> type[Dialect]:
    """Return the dialect for a session.

    It is named by the model's prefix (``qwen/qwen3.5-omni-flash-realtime``), by ``provider``, or by the host of ``url``; else
    it is OpenAI's, which many servers speak. Raises ConfigurationError for unknown or conflicting names.
    """
    named, hosted = _by_name(settings), _by_host(settings)
    if named is not None and hosted is not None and named is not hosted:
        raise ConfigurationError(
            f"The URL of the realtime session is one of {hosted.provider}'s, and its model is one of {named.provider}'s."
        )
    dialect = named or hosted or OpenAIDialect
    if not dialect(settings).model:
        raise ConfigurationError(f"{settings.model!r} names no model: use {dialect.provider}/model.")
    return dialect


def key_for(settings: RealtimeSettings, dialect: type[Dialect] | None = None) -> str:
    """Return the key for a session in ``dialect`` (None: that of the settings).

    The environment's key is only used for the provider's own servers: at any other URL it is "" unless ``api_key`` is set.
    Raises NoKeyError if a provider's own server has no key, ConfigurationError for a key that is not valid in a header.
    """
    dialect = dialect or dialect_for(settings)
    if settings.api_key is not None:
        return _checked_key("api_key", settings.api_key)
    if settings.url is not None and not _owns_host(dialect, _host_of(settings.url)):
        return ""
    if (found := key_in_environment(dialect)) is None:
        raise NoKeyError(dialect)
    return _checked_key(*found)


def key_in_environment(dialect: type[Dialect]) -> tuple[str, str] | None:
    """Return the first environment variable that is set and its value, unchecked; None if none is set."""
    held = ((variable, os.environ.get(variable, "").strip()) for variable in dialect.key_variables)
    return next(((variable, key) for variable, key in held if key), None)


def _by_name(settings: RealtimeSettings) -> type[Dialect] | None:
    given = settings.provider.strip().lower()
    by_provider = _NAMED.get(given)
    if given and by_provider is None:
        raise ConfigurationError(f"There is no provider {settings.provider!r} of realtime sessions. Known are {_KNOWN}.")
    prefix, slash, _ = settings.model.strip().partition("/")
    by_model = _NAMED.get(prefix.lower()) if slash else None
    if by_provider is not None and by_model is not None and by_model is not by_provider:
        raise ConfigurationError(f"{settings.model!r} is a model of {by_model.provider}, and provider is {settings.provider!r}.")
    if slash and by_model is None and by_provider is None and settings.url is None and prefix.lower() != "models":
        raise ConfigurationError(f"There is no provider {prefix!r} of realtime sessions. Known are {_KNOWN}.")
    return by_provider or by_model


def _by_host(settings: RealtimeSettings) -> type[Dialect] | None:
    if settings.url is None:
        return None
    host = _host_of(settings.url)
    return next((dialect for dialect in PROVIDERS if _owns_host(dialect, host)), None)


def _owns_host(dialect: type[Dialect], host: str) -> bool:
    return any(host.endswith(own) if own.startswith(".") else host == own for own in dialect.hosts)


def _host_of(url: str) -> str:
    """Return the host of a URL. Raises ConfigurationError without one, or for a URL with a user or a fragment."""
    try:
        parts = urlsplit(url)
        host, usable = parts.hostname or "", bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address, a port that is no number
        host, usable = "", False
    if not usable:
        raise ConfigurationError("The URL of the realtime session names no server: use wss://host:port/path.")
    if parts.username is not None or parts.fragment:
        raise ConfigurationError("The URL of a realtime session has no user and no fragment in it; a key is given as api_key.")
    return host


def _checked_key(source: str, key: str) -> str:
    key = key.strip()  # a line break comes along from a file
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigurationError(f"{source} holds characters that cannot stand in a key; is it whole, and nothing but the key?")
    return key
