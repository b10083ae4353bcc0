"""The seam of the writing side: what a way of writing calls must be able to write.

What lives here: the protocol. ``fenced`` is the contract's implementation, ``family`` the one that all families share. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from patchbay.types import ToolCall, ToolResult, ToolSpec


class Writer(Protocol):
    """Writes tools, calls and results the way one model reads and writes them. The same things always give the same bytes."""

    @property
    def format(self) -> str:
        """The format's name."""

    def listing(self, specs: Sequence[ToolSpec]) -> str:
        """The list of the tools, without a word about how they are called."""

    def instructions(self, specs: Sequence[ToolSpec], *, examples: bool = True) -> str:
        """What the model's system message says of the tools and of how to call them."""

    def calls(self, calls: Sequence[ToolCall]) -> str:
        """The calls of one turn."""

    def turn(self, content: str, calls: Sequence[ToolCall], reasoning: str = "") -> str:
        """A whole turn of the assistant."""

    def results(self, results: Sequence[ToolResult]) -> str:
        """The results of one turn's calls, as the text of a user's message: data that cannot pass for anything else."""

    def said_by_user(self, text: str) -> str:
        """What a user wrote, with nothing left in it that looks like a result's frame."""

    def call_id(self, number: int, name: str, given: str) -> str:
        """The id that a call is shown with: ``number`` counts the calls of the conversation from 0, ``given`` is its own id."""

    def holds(self, text: str) -> bool:
        """Whether a text can stand in an argument and be read back; False where the family has no way to write it."""
