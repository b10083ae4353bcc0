"""``resolve_model``: a ChatModel from what a user writes for one.

    "gpt-4o-mini"                              a model of OpenAI
    "qwen/qwen-plus"                           provider/model, for the providers in ``providers``
    "http://127.0.0.1:11434/v1#qwen2.5:7b"     any OpenAI-compatible server: URL#model
    "http://127.0.0.1:8080/v1"                 the same, where the server has one model
    openai.AsyncOpenAI(...)                    a client; requests name the model
    any ChatModel                              itself

What lives here: reading the name, finding the key and the URL, and making the client. What is asked through it is the business
of ``openai`` and ``gemini``. Nothing is sent, and no vendor's package imported, before the model is first asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from patchbay.errors import ConfigurationError
from patchbay.models.chat import ChatModel
from patchbay.models.hosted import HostedModel, Link
from patchbay.models.learnt import Learnt
from patchbay.models.modes import ModeMemory
from patchbay.models.options import TextOptions, make_options
from patchbay.models.providers import OTHER, PROVIDERS, Provider, provider_at, provider_named

_NO_KEY: Final = "none"
"""What is sent as a key to a server that was given none: local ones want some text, and look at none."""


def resolve_model(
    model: Any,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    tool_mode: str | None = None,
    timeout: float | None = None,
    max_retries: int | None = None,
    headers: Mapping[str, str] | None = None,
    **options: Any,
) -> ChatModel:
    """Return the ChatModel that ``model`` stands for; see the module for what it may be.

    ``api_key`` and ``base_url`` come before the provider's environment variables; a server that is given by its URL and is none
    of a known provider's gets no key but ``api_key``. ``timeout`` is in seconds, for each request (default: the client's, 600).
    ``tool_mode`` is "auto", "native" or "text", and ``options`` are the others of ``patchbay.wrap``. A ChatModel has its own
    settings, so none may be given with it; a client has its own connection. A model that is made here is a HostedModel: ``await
    model.aclose()`` closes its connections.

    Raises ConfigurationError for a name that cannot be read, an unknown provider, a missing key, and options that do not go
    together; TypeError for what is no model at all.
    """
    connection = {
        name: value
        for name, value in {
            "api_key": api_key,
            "base_url": base_url,
            "timeout": timeout,
            "max_retries": max_retries,
            "headers": headers,
        }.items()
        if value is not None
    }
    if tool_mode is not None:
        options["tools"] = tool_mode  # TextOptions' word for it
    if isinstance(model, str):
        settings = make_options("resolve_model", {"unknown_tools": "keep", **options})
        return _named(model, connection, settings)
    if isinstance(model, ChatModel):
        if connection or options:
            given = ", ".join([*connection, *options])
            raise ConfigurationError(f"{model!r} is a ChatModel with settings of its own; {given} cannot be applied to it.")
        return model
    if not hasattr(model, "chat"):
        raise TypeError(f"A model is a name, a URL, an openai client or a ChatModel, not {type(model).__name__}.")
    if connection:
        raise ConfigurationError(f"{', '.join(connection)}: an openai client brings its own; make it with them.")
    return _over_client(model, make_options("resolve_model", {"unknown_tools": "keep", **options}))


def _over_client(client: Any, settings: TextOptions) -> ChatModel:
    from patchbay.models.openai import OpenAIChatModel
    from patchbay.models.wrap import wrapped

    provider = provider_at(str(getattr(client, "base_url", "")))
    return OpenAIChatModel(wrapped(client, settings, ModeMemory(doubts=_doubts(provider))), provider=provider)


@dataclass(frozen=True)
class _Place:
    """Where a model is: its name, the server and how to get in."""

    name: str | None
    provider: Provider
    url: str
    key: str


def _named(text: str, connection: Mapping[str, Any], settings: TextOptions) -> HostedModel:
    text = text.strip()
    if not text:
        raise ConfigurationError("The model's name is empty.")
    place = _at_url(text, connection) if "://" in text else _of_provider(text, connection)
    connect = _gemini_link if place.provider.sdk == "google-genai" else _openai_link
    return HostedModel(
        place.name,
        connect(place, connection, settings),
        provider=place.provider.name,
        where=place.url,
    )


def _at_url(text: str, connection: Mapping[str, Any]) -> _Place:
    """``URL#model``: what stands behind "#" never belongs to a request, and a model's name may hold slashes and colons."""
    if "base_url" in connection:
        raise ConfigurationError(f"base_url: {text!r} is a URL already.")
    url, _, name = text.partition("#")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{text!r} is no URL of a server: use http://host:port/v1#model.")
    if parts.query or parts.username is not None:
        raise ConfigurationError("A model's URL has no query and no user in it; a key is given as api_key.")
    provider = provider_at(url)
    key = connection.get("api_key") or _key(provider)[0]
    if key is None and provider.endpoints:
        raise _no_key(provider)
    return _Place(unquote(name) or None, provider, url, key or _NO_KEY)


def _of_provider(text: str, connection: Mapping[str, Any]) -> _Place:
    prefix, slash, name = text.partition("/")
    provider = provider_named(prefix) if slash else provider_named("openai")
    assert provider is not None or slash
    if provider is None:
        known = ", ".join(known.name for known in PROVIDERS)
        raise ConfigurationError(
            f"There is no provider {prefix!r}. Known are {known}; a model on any other server is named by its URL, "
            f"as in http://127.0.0.1:8000/v1#{text}."
        )
    name = (name if slash else text).strip()
    if not name:
        raise ConfigurationError(f"{text!r} names no model: use {provider.name}/model.")
    found, url = _key(provider)
    key = connection.get("api_key") or found
    given = connection.get("base_url") or (os.environ.get(provider.base_url_variable or "") or None)
    if key is None and given is None:
        raise _no_key(provider)
    if given is not None:
        url = str(given)
        if provider.name == "openai":
            # Its variables are used for servers of all kinds, so what is there is told by where it is.
            provider = provider_at(url)
    return _Place(name, provider, url, key or _NO_KEY)


def _key(provider: Provider) -> tuple[str | None, str]:
    """The key that the environment has for a provider, and the URL it is for."""
    for endpoint in provider.endpoints:
        if key := os.environ.get(endpoint.key_variable):
            return key, endpoint.base_url
    return None, provider.endpoints[0].base_url if provider.endpoints else ""


def _no_key(provider: Provider) -> ConfigurationError:
    variables = " or ".join(dict.fromkeys(endpoint.key_variable for endpoint in provider.endpoints))
    return ConfigurationError(f"There is no key for {provider.name}: set {variables}, or give api_key.")


def _doubts(provider: Provider) -> bool:
    """Whether a server may ignore tools without a word; those of the known providers do not."""
    return provider is OTHER


def _openai_link(place: _Place, connection: Mapping[str, Any], settings: TextOptions) -> Callable[[], Link]:
    memory, learnt = ModeMemory(doubts=_doubts(place.provider)), Learnt()

    def connect() -> Link:
        import openai

        from patchbay.models.openai import OpenAIChatModel
        from patchbay.models.wrap import wrapped

        given = {name: connection[name] for name in ("timeout", "max_retries") if name in connection}
        client = wrapped(
            openai.AsyncOpenAI(
                api_key=place.key, base_url=place.url, default_headers=dict(connection.get("headers") or {}), **given
            ),
            settings,
            memory,
        )
        return _OpenAILink(client, OpenAIChatModel(client, provider=place.provider, learnt=learnt))

    return connect


@dataclass(frozen=True)
class _OpenAILink:
    client: Any
    model: ChatModel

    async def names(self) -> list[str]:
        return [model.id async for model in self.client.models.list()]

    async def close(self) -> None:
        await self.client.close()


def _gemini_link(place: _Place, connection: Mapping[str, Any], settings: TextOptions) -> Callable[[], Link]:
    memory = ModeMemory(doubts=False)

    def connect() -> Link:
        from patchbay.models.gemini import GeminiChatModel, connect_gemini

        given = {name: connection.get(name) for name in ("timeout", "max_retries", "headers")}
        client = connect_gemini(place.key, place.url, **given)
        return _GeminiLink(client, GeminiChatModel(client, options=settings, memory=memory))

    return connect


@dataclass(frozen=True)
class _GeminiLink:
    client: Any
    model: ChatModel

    async def names(self) -> list[str]:
        raise AssertionError("a model of Gemini always has a name")

    async def close(self) -> None:
        await self.client.aio.aclose()
