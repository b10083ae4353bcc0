"""A model by its name, on a server whose client is ours: made when it is first asked, one for each event loop, closed by us."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

from patchbay.errors import ConfigurationError
from patchbay.models.chat import ChatModel, ChatRequest, ModelEvent
from patchbay.models.loops import PerLoop


class Link(Protocol):
    """A client and the ChatModel over it."""

    @property
    def model(self) -> ChatModel:
        """The model over the client."""
        ...

    async def names(self) -> list[str]:
        """The names of the models that the server has; nothing where it does not tell. Raises UpstreamError."""
        ...

    async def close(self) -> None:
        """Close the client's connections."""
        ...


class HostedModel:
    """A ChatModel that knows its own name; a request may name another one of the same server (``parameters["model"]``).

    ``name`` is None for a server that is to say itself which model it has. ``provider`` is the provider's name, "" for a server
    that is none of them. Usable from several event loops; ``aclose`` closes what the running one has opened, and what is asked
    later opens it again.
    """

    def __init__(self, name: str | None, connect: Callable[[], Link], *, provider: str, where: str) -> None:
        self.name = name
        self.provider = provider
        self._where = where
        self._links = PerLoop(connect)

    def __repr__(self) -> str:
        return f"<HostedModel {self.name or '(the only one)'} at {self._where}>"

    async def respond(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer ``request``. Raises UpstreamError, and ConfigurationError where the server has several models or none."""
        link = self._links.get()
        if "model" not in request.parameters:
            if self.name is None:
                self.name = await self._only_one(link)
            request = replace(request, parameters={"model": self.name, **request.parameters})
        events: Any = link.model.respond(request)
        async with aclosing(events):
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close the connections that this event loop has opened."""
        link = self._links.take()
        if link is not None:
            await link.close()

    async def _only_one(self, link: Link) -> str:
        names = await link.names()
        if len(names) == 1:
            return names[0]
        some = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        found = f"has several models ({some})" if names else "names no model"
        raise ConfigurationError(f"{self._where} {found}: say which, as in {self._where}#name.")
