"""The examination of a model server: all probes in order, within a bound of time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Final

from patchbay.doctor.abilities import PROBES as ABILITIES
from patchbay.doctor.findings import Finding, Result
from patchbay.doctor.measures import PROBES as MEASURES
from patchbay.doctor.reachability import PROBES as REACHABILITY
from patchbay.doctor.reachability import Probe
from patchbay.doctor.server import ExaminedServer
from patchbay.errors import PatchbayError
from patchbay.server.settings import ProxySettings

PROBES: Final = {**REACHABILITY, **ABILITIES, **MEASURES}
"""In the order in which they run: later ones use what earlier ones have found."""

_TOO_LATE: Final[Result] = ("skipped", "The time for the whole examination is over.", "Give it more with --limit.")


async def examine(
    settings: ProxySettings,
    model: str = "",
    *,
    timeout: float = 60.0,  # noqa: ASYNC109  (of each request)
    limit: float = 600.0,
    deep: bool = False,
    begins: Callable[[str, str], object] = lambda _name, _model: None,
) -> AsyncGenerator[Finding, None]:
    """Examine the server of ``settings``, and yield each finding as it comes, one for each of ``PROBES``.

    ``model`` "" takes the first that the server lists. ``timeout`` bounds each request, ``limit`` the whole, in seconds; what
    there is no time for is skipped. ``deep`` allows a prompt of 128,000 tokens in place of 8,000. ``begins`` gets the name of
    each probe when it begins, and the model's, "" until it is known. About 20 requests are sent.
    """
    server = ExaminedServer(settings, model, timeout=timeout, deep=deep)
    deadline = asyncio.get_running_loop().time() + limit
    try:
        for name, probe in PROBES.items():
            begins(name, server.model)
            yield Finding(name, *await _result(server, probe, deadline))
    finally:
        await server.close()


async def _result(server: ExaminedServer, probe: Probe, deadline: float) -> Result:
    if asyncio.get_running_loop().time() >= deadline:
        return _TOO_LATE
    if server.facts.unusable:
        return "skipped", "The server cannot be used yet.", ""
    try:
        async with asyncio.timeout_at(deadline):
            return await probe(server)
    except PatchbayError as error:
        return "problem", str(error), "Look at the server's load and log, or give it more time with --timeout."
    except TimeoutError:
        return _TOO_LATE
    except OSError as error:
        return "problem", f"The connection failed: {error.strerror or error}.", "Try again."
