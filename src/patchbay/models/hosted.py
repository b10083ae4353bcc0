"""A model by its name, on a server whose client is ours: made when it is first asked, one for each event loop, closed by us."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Protocol

from patchbay.errors import ConfigurationError
from patchbay.models.chat import ChatModel, ChatRequest, ModelEvent
from patchbay.models.loops import PerLoop

_SHOWN: Final = 10
"""How many models an error names."""


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


class NotOneModelError(ConfigurationError):
    """A server that is to say itself which model it has names several, or none: ``found``, as "has several models (a, b)"."""

    def __init__(self, where: str, names: Sequence[str]) -> None:
        some = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        self.found = f"has several models ({some})" if names else "names no model"
        super().__init__(f"{where} {self.found}: say which, as in {where}#name.")


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
            name = self.name if self.name is not None else await self.only_one()
            request = replace(request, parameters={"model": name, **request.parameters})
        events: Any = link.model.respond(request)
        async with aclosing(events):
            async for event in events:
                yield event

    async def only_one(self) -> str:
        """Ask the server for its one model, which is this one from now on; return its name.

        Raises UpstreamError, and NotOneModelError where it has several or names none.
        """
        names = await self._links.get().names()
        if len(names) != 1:
            raise NotOneModelError(self._where, names)
        self.name = names[0]
        return names[0]

    async def aclose(self) -> None:
        """Close the connections that this event loop has opened."""
        link = self._links.take()
        if link is not None:
            await link.close()
