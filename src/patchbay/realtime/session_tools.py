"""The tools of a session in the provider's shape, without those that its server refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from patchbay.models.offer import Offer, Told
from patchbay.models.providers import Provider
from patchbay.realtime.providers.base import Dialect, WireTool, tool_name
from patchbay.realtime.server_events import ServerError
from patchbay.tools import Tool, collect_tools
from patchbay.tools.registry import Snapshot
from patchbay.types import ToolSpec

_PLACE: Final = re.compile(r"\btools(?:\[|\.)(\d+)")

_logger = logging.getLogger(__name__)


class SessionTools:
    """The program's ``own`` tools and those of the last snapshot, which come first where names are the same: ``tools``."""

    def __init__(self, dialect: type[Dialect], own: Iterable[Any]) -> None:
        self._own: Mapping[str, Tool] = collect_tools(own)
        self._reader: Tool | None = None
        self._offer = Offer(Provider(name=dialect.provider, dialect=dialect.tools))
        self._refused: dict[str, tuple[ToolSpec, str]] = {}
        self.tools: Mapping[str, Tool] = self._own
        self._told = self._tell()

    def use(self, snapshot: Snapshot) -> None:
        """Have these from now on, beside the program's own."""
        self.tools = {**self._own, **snapshot.tools}
        self._told = self._tell()

    def tell_reader(self, reader: Tool) -> None:
        """Tell the model of this one too: the tool that reads long results, which each turn has by itself."""
        self._reader = reader
        self._told = self._tell()

    def told(self) -> Sequence[WireTool]:
        """The tools as they go over the wire. A tool that cannot, or that the server has refused, is left out alone."""
        return self._told.tools

    def own_name(self, name: str) -> str:
        """Return the tool's own name for one from the wire."""
        return self._told.names.own(name)

    def refuse(self, news: ServerError, sent: Sequence[WireTool]) -> bool:
        """Leave out the one tool of those that were sent that the server does not take; False where it does not say which."""
        place = _PLACE.search(news.param)
        if place is None or int(place[1]) >= len(sent):
            return False
        refused = sent[int(place[1])]
        name = self._told.names.own(tool_name(refused))
        if refused not in self._told.tools or (tool := self.tools.get(name)) is None:
            return False  # it is another one by now, or gone
        self._refused[name] = tool.spec, news.message
        self._told = self._tell()
        _logger.warning("The model's server does not take the tool %r, which is left out: %s", name, news.message)
        return True

    def complaint(self) -> str:
        """What the server said of the tools that are left out because of it; "" where there are none."""
        return "; ".join(f"{name}: {why}" for name, (_, why) in self._refused.items())

    def _tell(self) -> Told:
        # A tool that is another one by now is told again.
        self._refused = {
            name: said for name, said in self._refused.items() if name in self.tools and self.tools[name].spec == said[0]
        }
        specs = [tool.spec for tool in self.tools.values() if tool.offered and tool.name not in self._refused]
        if self._reader is not None and self._reader.name not in self.tools:
            specs.append(self._reader.spec)
        return self._offer.of(specs)
