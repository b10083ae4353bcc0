"""What a host asks of a plugin beside calls: FREEZE, UNFREEZE, CONFIG_UPDATE, each answered when its hook has returned.

What lives here: requests that wait for their RESULT. What does not: when they are made, and what follows (``supervisor``).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import msgspec

from patchbay.plugins.connection import Connection
from patchbay.plugins.errors import PluginError
from patchbay.plugins.messages import Message, Result


class Asking:
    """The requests to the plugin ``plugin_id`` that wait for an answer. Belongs to one event loop."""

    def __init__(self, plugin_id: str) -> None:
        self._plugin_id = plugin_id
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        """Return an id that no call has."""
        return f"h{next(self._numbers)}"

    async def ask(self, connection: Connection | None, message: Callable[[str], Message], *, within: float) -> str:
        """Send the message that is made with a new id, wait for the answer, and return what the plugin says went wrong ("").

        Raises PluginError where it does not answer ``within`` seconds, and where it has ended.
        """
        if connection is None or connection.is_closed:
            raise PluginError(f"Plugin {self._plugin_id!r} has no process.")
        req_id = self.new_id()
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[req_id] = answer
        try:
            connection.send(message(req_id))
            async with asyncio.timeout(within):
                result = await answer
        except TimeoutError:
            raise PluginError(f"Plugin {self._plugin_id!r} has not answered within {within:g} s.") from None
        finally:
            del self._waiting[req_id]
        return "" if result.success else _reason(result)

    def settle(self, result: Result) -> bool:
        """Take a RESULT, and say whether it was one of these."""
        answer = self._waiting.get(result.req_id)
        if answer is not None and not answer.done():
            answer.set_result(result)
        return answer is not None

    def give_up(self) -> None:
        """The plugin is gone, and answers nothing any more."""
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(PluginError(f"Plugin {self._plugin_id!r} ended before it answered."))


def _reason(result: Result) -> str:
    try:
        said = msgspec.json.decode(result.data)["output"]["error"]
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        said = result.error
    return str(said)
