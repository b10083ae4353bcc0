"""Which call of a tool in its turn a call is: so people tell apart those that run side by side. What is remembered is bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeAlias

TURNS: Final = 200
"""Of how many turns it is known, which are those that were heard of last: the end of a turn may not be told."""
CALLS: Final = 1000
"""Of how many calls of a turn; those that come then are like the first."""

Call: TypeAlias = tuple[int, str]
"""The round, and the call's id, which a model may use again in the next one."""


class CallNumbers:
    """Numbers the calls of each tool in each turn, in the order in which they are heard of, from 1 on."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, dict[tuple[str, Call], int]] = OrderedDict()

    def of(self, turn: str, tool: str, call: Call) -> int:
        """Return the number of a call."""
        if not turn:
            return 1  # nobody knows which belong together
        numbers = self._turns.setdefault(turn, {})
        self._turns.move_to_end(turn)
        if len(self._turns) > TURNS:
            self._turns.popitem(last=False)
        if (tool, call) not in numbers:
            if len(numbers) >= CALLS:
                return 1
            numbers[tool, call] = 1 + sum(each == tool for each, _ in numbers)
        return numbers[tool, call]

    def forget(self, turn: str) -> None:
        """The turn has ended."""
        self._turns.pop(turn, None)
