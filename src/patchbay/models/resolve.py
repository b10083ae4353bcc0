"""``resolve_model``: makes a ChatModel from a name, a URL or a client.

    "gpt-4o-mini"                              a model of OpenAI
    "qwen/qwen-plus"                           provider/model, for the providers in ``providers``
    "http://127.0.0.1:11434/v1#qwen2.5:7b"     any OpenAI-compatible server: URL#model
    "http://127.0.0.1:8080/v1"                 the same, where the server has one model
    openai.AsyncOpenAI(...)                    a client; each request names its model
    any ChatModel                              itself

Nothing is sent, and no vendor's package imported, before the first request.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

from patchbay.errors import ConfigurationError
from patchbay.models.capabilities import Capabilities
from patchbay.models.chat_model import ChatModel, ChatRequest, ModelEvent
from patchbay.models.options import TextOptions, make_options
from patchbay.models.providers import OTHER, PROVIDERS, Provider, provider_at, provider_named

_SHOWN: Final = 10
"""Maximum of models that an error lists."""


@dataclass(frozen=True)
class Link:
    """The ChatModel over a client; ``close`` closes the client's connections.

    ``names`` requests the names of the server's models; empty if it does not list them. Raises UpstreamError.
    """

    model: ChatModel
    close: Callable[[], Awaitable[None]]
    names: Callable[[], Awaitable[list[str]]] | None = None


class NotOneModelError(ConfigurationError):
    """A server that should have one model lists several, or none; ``found`` is a phrase such as "has several models (a, b)"."""

    def __init__(self, where: str, names: Sequence[str]) -> None:
        some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        self.found = f"has several models ({some})" if names else "names no model"
        super().__init__(f"{where} {self.found}: say which, as in {where}#name.")


class HostedModel:
    """A ChatModel that knows its own name; a request may name another one of the same server (``parameters["model"]``).

    ``name`` is None until a server of one model was asked for it. ``provider`` is the provider's name, "" for other servers.
    Usable from several event loops; ``aclose`` closes the connections of the running one, and a later request opens them again.
    """

    def __init__(self, name: str | None, connect: Callable[[], Link], *, provider: str, where: str) -> None:
        self.name = name
        self.provider = provider
        self._where = where
        self._connect = connect
        self._links: WeakKeyDictionary[asyncio.AbstractEventLoop, Link] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<HostedModel {self.name or '(the only one)'} at {self._where}>"

    def _link(self) -> Link:
        """Return the link of the running event loop."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            link = self._links[loop] = self._connect()
        return link

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises UpstreamError, and ConfigurationError if the server has several models or none."""
        link = self._link()
        if "model" not in request.parameters:
            name = self.name if self.name is not None else await self.only_one()
            request = replace(request, parameters={"model": name, **request.parameters})
        events: Any = link.model.respond(request)
        async with aclosing(events):
            async for event in events:
                yield event

    async def only_one(self) -> str:
        """Ask the server for its only model, store its name and return it.

        Raises UpstreamError, and NotOneModelError if it lists several or none.
        """
        request_names = self._link().names
        assert request_names is not None  # (only models given by a URL lack a name)
        names = await request_names()
        if len(names) != 1:
            raise NotOneModelError(self._where, names)
        self.name = names[0]
        return names[0]

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        link = self._links.pop(asyncio.get_running_loop(), None)
        if link is not None:
            await link.close()


_NO_KEY: Final = "none"
"""The key sent to a server without one: local servers require some text and ignore it."""


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
    """Return the ChatModel for ``model``; the module's docstring lists the forms.

    ``api_key`` and ``base_url`` override the provider's environment variables; a server given by its URL that is not a known
    provider's gets no key but ``api_key``. ``timeout`` is in seconds, for each request (default: the client's, 600).
    ``tool_mode`` is "auto", "native" or "text", and ``options`` are the others of ``patchbay.wrap``. A ChatModel has its own
    settings, so none may be given with it; a client has its own connection. A model made from a name or URL is a HostedModel:
    ``await model.aclose()`` closes its connections.

    Raises ConfigurationError for an invalid name, an unknown provider, a missing key, and conflicting options; TypeError for
    anything else.
    """
    _check_limits(timeout, max_retries)
    connection = {
        name: value
        for name, value in {
            "api_key": None if api_key is None else _sendable("api_key", api_key),
            "base_url": base_url,
            "timeout": timeout,
            "max_retries": max_retries,
            "headers": headers,
        }.items()
        if value is not None
    }
    if tool_mode is not None:
        options["tools"] = tool_mode  # (its name in TextOptions)
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
    from patchbay.models.openai import OpenAIChatModel

    settings = make_options("resolve_model", {"unknown_tools": "keep", **options})
    provider = provider_at(str(getattr(model, "base_url", "")))
    return OpenAIChatModel(model, provider=provider, options=settings, capabilities=Capabilities(doubts=provider is OTHER))


@dataclass(frozen=True)
class _Target:
    """A model's address: its name, provider, URL and key."""

    name: str | None
    provider: Provider
    url: str
    key: str = field(repr=False)


def _named(text: str, connection: Mapping[str, Any], settings: TextOptions) -> HostedModel:
    text = text.strip()
    if not text:
        raise ConfigurationError("The model's name is empty.")
    target = _at_url(text, connection) if "://" in text else _at_provider(text, connection)
    capabilities = Capabilities(doubts=target.provider is OTHER)
    link = _gemini_link if target.provider.sdk == "google-genai" else _openai_link
    connect = partial(link, target, connection, settings, capabilities)
    return HostedModel(target.name, connect, provider=target.provider.name, where=target.url)


def _at_url(text: str, connection: Mapping[str, Any]) -> _Target:
    """Read ``URL#model``: a fragment is never part of a request, and a model's name may contain slashes and colons."""
    if "base_url" in connection:
        raise ConfigurationError(f"base_url: {_without_user(text)!r} is a URL already.")
    url, _, name = text.partition("#")
    _check_url(url, f"{_without_user(text)!r}")
    provider = provider_at(url)
    key = connection.get("api_key") or _key(provider)[0]
    if key is None and provider.endpoints:
        raise _no_key(provider)
    return _Target(unquote(name) or None, provider, url, key or _NO_KEY)


def _check_url(url: str, label: str) -> None:
    """Raise ConfigurationError if ``url`` is not a server's. ``label`` names it in the error, without secrets."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half an IPv6 address, an invalid port
        known = False
    if not known:
        raise ConfigurationError(f"{label} is no URL of a server: use http://host:port/v1#model.")
    if parts.query or parts.username is not None:
        raise ConfigurationError(f"{label}: a model's URL has no query and no user in it; a key is given as api_key.")


def _without_user(text: str) -> str:
    """Return a URL for a message, without user and query, which may be secret."""
    return re.sub(r"//[^/#]*@", "//...@", re.sub(r"\?[^#]*", "?...", text))


def _at_provider(text: str, connection: Mapping[str, Any]) -> _Target:
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
    variable = provider.base_url_variable or ""
    given = connection.get("base_url") or os.environ.get(variable, "").strip() or None
    if key is None and given is None:
        raise _no_key(provider)
    if given is not None:
        url = str(given)
        source = "base_url" if "base_url" in connection else variable
        _check_url(url, f"{source} {_without_user(url)!r}")
        if "#" in url:
            raise ConfigurationError(
                f"{source} {url!r} holds a model's name: it stands in {provider.name}/model, or in a URL alone."
            )
        if provider.name == "openai":
            # Its variables are used for servers of all kinds, so the host decides.
            provider = provider_at(url)
    return _Target(name, provider, url, key or _NO_KEY)


def _key(provider: Provider) -> tuple[str | None, str]:
    """Return the key of a provider from the environment, and its URL."""
    for endpoint in provider.endpoints:
        if key := _sendable(endpoint.key_variable, os.environ.get(endpoint.key_variable, "")):
            return key, endpoint.base_url
    return None, provider.endpoints[0].base_url if provider.endpoints else ""


def _sendable(source: str, key: str) -> str | None:
    """Return the key, stripped; None if it is empty. Raises ConfigurationError for characters that no header may have."""
    key = key.strip()  # (files end in a line break)
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigurationError(f"{source} holds characters that cannot stand in a key; is it whole, and nothing but the key?")
    return key or None


def _check_limits(timeout: float | None, max_retries: int | None) -> None:
    if timeout is not None and not (isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0):
        raise ConfigurationError(f"timeout is {timeout!r}: use a number of seconds above 0.")
    if max_retries is not None and (not isinstance(max_retries, int) or isinstance(max_retries, bool) or max_retries < 0):
        raise ConfigurationError(f"max_retries is {max_retries!r}: use a whole number of at least 0.")


def _no_key(provider: Provider) -> ConfigurationError:
    variables = " or ".join(dict.fromkeys(endpoint.key_variable for endpoint in provider.endpoints))
    return ConfigurationError(f"There is no key for {provider.name}: set {variables}, or give api_key.")


def _openai_link(target: _Target, connection: Mapping[str, Any], settings: TextOptions, capabilities: Capabilities) -> Link:
    import openai

    from patchbay.models.openai import OpenAIChatModel

    given = {name: connection[name] for name in ("timeout", "max_retries") if name in connection}
    headers = dict(connection.get("headers") or {})
    client = openai.AsyncOpenAI(api_key=target.key, base_url=target.url, default_headers=headers, **given)
    model = OpenAIChatModel(client, provider=target.provider, options=settings, capabilities=capabilities)
    return Link(model, client.close, partial(_model_names, client, target.key))


async def _model_names(client: Any, key: str) -> list[str]:
    from patchbay.models.error_bodies import client_errors

    # Read from the raw response: for a list in another form the client's error would be useless.
    with client_errors(lambda: (key,)):
        response = await client.models.with_raw_response.list()
    try:
        listed = json.loads(response.content)
    except (ValueError, RecursionError):
        return []
    models = listed.get("data") if isinstance(listed, dict) else None
    names = [model.get("id") for model in models if isinstance(model, dict)] if isinstance(models, list) else []
    return [name for name in names if isinstance(name, str) and name]


def _gemini_link(target: _Target, connection: Mapping[str, Any], settings: TextOptions, capabilities: Capabilities) -> Link:
    from patchbay.models.gemini import GeminiChatModel, connect_gemini

    given = {name: connection.get(name) for name in ("timeout", "max_retries", "headers")}
    client = connect_gemini(target.key, target.url, **given)
    model = GeminiChatModel(client, options=settings, capabilities=capabilities)
    return Link(model, client.aio.aclose)
