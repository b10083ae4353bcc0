"""What is wanted of the server, and whether a listing shows it. Pure: data in, a verdict out.

What lives here: one wanted tool and its state, a listing by source and name, and the comparison. What does not: asking the server
(``reconciler``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from patchbay.plugins.host.server_api import Listing, WantedTool
from patchbay.plugins.messages import ToolStateName

_MOST_EDITS = 3
"""So often a tool that the server shows otherwise than it was registered is registered again; then the server has its way."""
_MOST_TAKEN = 3
"""So often a tool that somebody else has registered at another address is taken back at once."""

Verdict = Literal["there", "edited", "gone", "taken"]
Rows = list[tuple[str, Mapping[str, Any]]]
"""A tool's rows: the role, and what the server shows for it."""


@dataclass(slots=True, eq=False)
class Wish:
    """A tool that is wanted. ``settled`` is when the server last answered for it, on the reconciler's clock of requests.

    ``due`` is when it is to be sent next (on the loop's clock; None: not at all), ``failures`` how often in a row it was not.
    ``edits``: how often in a row it was found to be shown otherwise, ``accepted``: how the server shows it for good.
    ``signed``: whether its calls carry a signature; None where the server has not said so. ``taken``: how often it was found at
    another host.
    """

    tool: WantedTool
    state: ToolStateName = "pending"
    reason: str = ""
    settled: int = 0
    due: float | None = 0.0
    failures: int = 0
    edits: int = 0
    accepted: Rows | None = None
    signed: bool | None = None
    taken: int = 0


@dataclass(frozen=True)
class Shown:
    """A listing, as it is asked: all rows of a source's tool. ``asked`` is when it was asked for, on the clock of requests."""

    asked: int = 0
    roles: int = 0
    instance: str | None = None
    rows: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)

    @classmethod
    def of(cls, listing: Listing, asked: int) -> Shown:
        """Index a listing."""
        rows: dict[str, dict[str, Rows]] = {}
        for role, tools in listing.tools_by_role.items():
            for row in tools:
                source = rows.setdefault(str(row.get("source")), {})
                source.setdefault(str(row.get("name")), []).append((role, row))
        return cls(asked, len(listing.tools_by_role), listing.instance, rows)

    def judge(self, wish: Wish) -> Verdict:
        """Say whether the server has the tool as it is wanted.

        A server that says which run it is keeps a tool for all roles in each of them; where a role lacks it, somebody took it
        away there, and that stands. Of any other server a role that lacks it was made anew, and the tool is gone there.
        """
        tool, rows = wish.tool, self._rows_of(wish.tool)
        missing = tool.role is None and self.instance is None and len(rows) < self.roles
        if not rows or missing or any(not _reaches(row, tool) for _, row in rows):
            is_taken = self.taken_by(tool) != ""
            wish.taken += is_taken
            return "taken" if is_taken and wish.taken > _MOST_TAKEN else "gone"
        if all(_is_as_wanted(row, tool) for _, row in rows):
            wish.edits, wish.accepted = 0, None
            return "there"
        if rows == wish.accepted:
            return "there"
        if wish.edits >= _MOST_EDITS:
            wish.accepted = rows
            return "there"
        return "edited"

    def taken_by(self, tool: WantedTool) -> str:
        """Return the address at which somebody else has the tool now, "" where nobody has."""
        others = [row for _, row in self._rows_of(tool) if row.get("callback_url") != tool.callback_url]
        return next((str(row.get("callback_url")) for row in others if row.get("state", "active") == "active"), "")

    def _rows_of(self, tool: WantedTool) -> Rows:
        rows = self.rows.get(tool.source, {}).get(tool.name, [])
        return rows if tool.role is None else [(role, row) for role, row in rows if role == tool.role]

    def leftovers(self, source: str, wanted: Mapping[str, Wish]) -> Iterator[tuple[str, str | None]]:
        """Yield the names and roles of tools that the server has of this source, and that are not wanted."""
        for name, rows in self.rows.get(source, {}).items():
            wish = wanted.get(name)
            if wish is None:
                yield name, None
                continue
            for role, row in rows:
                if "role" in row and (row["role"] or None) != wish.tool.role:
                    yield name, role


def _reaches(row: Mapping[str, Any], tool: WantedTool) -> bool:
    """Whether calls of it come to this host. A tool that the server hides is registered again, which shows it."""
    return row.get("callback_url") == tool.callback_url and row.get("state", "active") == "active"


def _is_as_wanted(row: Mapping[str, Any], tool: WantedTool) -> bool:
    return bool(
        row.get("description", tool.description) == tool.description
        and row.get("parameters", tool.parameters) == tool.parameters
        and row.get("timeout_seconds", tool.timeout_seconds) == tool.timeout_seconds
        and row.get("annotations", tool.annotations) == tool.annotations
    )
