"""The providers of realtime sessions: by name, and by the host of the URL. A new one is a file in ``dialects`` and a line here.

What lives here: whose server a session's settings mean, and the key for it. What does not: anything that is sent.
"""

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
"""Those that a model's name, or ``provider``, may name."""

_NAMED: Final = {name: dialect for dialect in PROVIDERS for name in (dialect.provider, *dialect.other_names)}
_KNOWN: Final = ", ".join(dialect.provider for dialect in PROVIDERS)


class NoKeyError(ConfigurationError):
    """A provider's own server would be asked without a key. ``variables`` of the environment may hold one: "A or B"."""

    def __init__(self, dialect: type[Dialect]) -> None:
        self.variables = " or ".join(dialect.key_variables)
        super().__init__(f"There is no key for {dialect.provider}: set {self.variables}, or give api_key.")


def dialect_for(settings: RealtimeSettings) -> type[Dialect]:
    """Return the dialect that a session speaks.

    The model's name tells it (``qwen/qwen3.5-omni-flash-realtime``), or ``provider``, or the host of ``url``. Where none of them
    does it is OpenAI's, which servers of all kinds speak. Raises ConfigurationError for names that are not known, and where two
    providers are named.
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
    """Return the key that a session is opened with, in ``dialect`` (None: that of the settings).

    The environment's key is for the provider's own servers: at any other URL it is "" unless ``api_key`` was given. Raises
    NoKeyError where a provider's own server would be asked without a key, ConfigurationError for a key that no header can hold.
    """
    dialect = dialect or dialect_for(settings)
    if settings.api_key is not None:
        return _sendable("api_key", settings.api_key)
    if settings.url is not None and not _is_of(dialect, _host_of(settings.url)):
        return ""
    if (found := key_in_environment(dialect)) is None:
        raise NoKeyError(dialect)
    return _sendable(*found)


def key_in_environment(dialect: type[Dialect]) -> tuple[str, str] | None:
    """Return the first of a provider's variables that is set and what it holds, unchecked; None where none is."""
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
    return next((dialect for dialect in PROVIDERS if _is_of(dialect, host)), None)


def _is_of(dialect: type[Dialect], host: str) -> bool:
    return any(host.endswith(own) if own.startswith(".") else host == own for own in dialect.hosts)


def _host_of(url: str) -> str:
    """The server that an URL names. Raises ConfigurationError where it names none, or has in it what belongs elsewhere."""
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


def _sendable(source: str, key: str) -> str:
    key = key.strip()  # a line break comes along from a file
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigurationError(f"{source} holds characters that cannot stand in a key; is it whole, and nothing but the key?")
    return key
