"""The tools of a session in the provider's shape, without those that its server refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from patchbay.models.providers import Provider
from patchbay.models.tool_encoder import EncodedTools, ToolEncoder
from patchbay.realtime.providers.base import Dialect, WireTool, tool_name
from patchbay.realtime.server_events import ServerError
from patchbay.tools import Tool, collect_tools
from patchbay.tools.registry import Snapshot
from patchbay.tools.search import SearchTools, ToolSearch
from patchbay.types import ToolSpec

_TOOL_INDEX: Final = re.compile(r"\btools(?:\[|\.)(\d+)")

_logger = logging.getLogger(__name__)


class SessionTools:
    """The program's ``own`` tools and the last snapshot's, merged into ``available``; of equal names the snapshot's is taken.

    With ``search``, a large set is offered as a search tool, the pinned tools, and the tools that were found.
    """

    def __init__(self, dialect: type[Dialect], own: Iterable[Any], search: ToolSearch | None = None) -> None:
        self._own: Mapping[str, Tool] = collect_tools(own)
        self._tool_search = search
        self._found: dict[str, None] = {}
        self._has_changed = False
        self._reader: Tool | None = None
        self._encoder = ToolEncoder(Provider(name=dialect.provider, dialect=dialect.tools))
        self._refused: dict[str, tuple[ToolSpec, str]] = {}
        self._replace(self._own)

    def use(self, snapshot: Snapshot) -> None:
        """Replace the snapshot."""
        self._replace({**self._own, **snapshot.tools})

    def _replace(self, tools: Mapping[str, Tool]) -> None:
        """Replace all tools: of many, the model is offered the pinned ones, a search, and what it has found."""
        self.available = self._offered = tools
        catalog = self._tool_search.catalog(tools) if self._tool_search is not None else None
        if catalog is not None:
            search = SearchTools(catalog, self._offer)
            self.available = {**tools, search.name: search}
            self._offered = {**catalog.pinned, search.name: search}
            self._found = {name: None for name in self._found if name in tools and name not in self._offered}
            self._offered.update((name, tools[name]) for name in self._found)
        self._encoded = self._encode()

    def _offer(self, found: Sequence[Tool]) -> None:
        new = {tool.name: tool for tool in found if tool.name not in self._offered}
        if new:
            self._found.update(dict.fromkeys(new))
            self._offered = {**self._offered, **new}
            self._encoded = self._encode()
            self._has_changed = True

    def pop_changed(self) -> bool:
        """Return whether a search has added tools since the last call."""
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def add_reader(self, reader: Tool) -> None:
        """Offer the tool that reads long results, which each turn has by itself."""
        self._reader = reader
        self._encoded = self._encode()

    def wire_tools(self) -> Sequence[WireTool]:
        """Return the tools in wire format, without those that cannot be encoded or were refused."""
        return self._encoded.tools

    def original_name(self, name: str) -> str:
        """Return the tool's own name for a wire name."""
        return self._encoded.names.own(name)

    def exclude(self, event: ServerError, sent: Sequence[WireTool]) -> bool:
        """Stop offering the tool that the server's error names; return False if it names none."""
        index = _TOOL_INDEX.search(event.param)
        if index is None or int(index[1]) >= len(sent):
            return False
        refused = sent[int(index[1])]
        name = self._encoded.names.own(tool_name(refused))
        if refused not in self._encoded.tools or (tool := self.available.get(name)) is None:
            return False  # changed or removed since
        self._refused[name] = tool.spec, event.message
        self._encoded = self._encode()
        _logger.warning("The model's server does not take the tool %r, which is left out: %s", name, event.message)
        return True

    def rejection_message(self) -> str:
        """Return the server's reasons for refused tools, "" if there are none."""
        return "; ".join(f"{name}: {why}" for name, (_, why) in self._refused.items())

    def _encode(self) -> EncodedTools:
        # A tool that has changed is offered again.
        self._refused = {
            name: rejection
            for name, rejection in self._refused.items()
            if name in self.available and self.available[name].spec == rejection[0]
        }
        specs = [tool.spec for tool in self._offered.values() if tool.offered and tool.name not in self._refused]
        if self._reader is not None and self._reader.name not in self.available:
            specs.append(self._reader.spec)
        return self._encoder.of(specs)
