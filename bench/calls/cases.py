"""What is called, and what every row has to be. Standard library only: this is read in the peers' environments too."""

# No "from __future__ import annotations" here: the tool's annotations are to be types, as every framework can read them.

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

NAME = "echo"
DESCRIPTION = "Say the words again."
PARAMETERS = {
    "type": "object",
    "properties": {"index": {"type": "integer"}, "text": {"type": "string"}, "limit": {"type": "number", "default": 1.0}},
    "required": ["index", "text"],
}


async def echo(index: int, text: str, limit: float = 1.0) -> str:  # noqa: ARG001
    """Say the words again."""
    return f"{index}: {text}"


def arguments(number: int) -> dict[str, Any]:
    """What call ``number`` is given; ``limit`` is left to its default."""
    return {"index": number, "text": "some words"}


def arguments_text(number: int) -> str:
    """The same as a model writes it."""
    return f'{{"index": {number}, "text": "some words"}}'


def body(number: int) -> dict[str, Any]:
    """The same as a call of ``patchbay serve`` tells it to a callback."""
    return {"name": NAME, "arguments": arguments(number), "call_id": f"c{number}", "raw_arguments": arguments_text(number)}


def expected(number: int) -> str:
    """What call ``number`` has to come to."""
    return f"{number}: some words"


@dataclass(frozen=True)
class Opened:
    """A way to the tool that is open. ``call`` makes the call of a number and returns what it came to.

    ``pids`` are the other processes that take part, by what they are to the call.
    """

    call: Callable[[int], Awaitable[object]]
    pids: Mapping[str, int] = field(default_factory=dict)


class Row(Protocol):
    """The module of a row. ``UVLOOP``: what runs the caller's loop, which is what runs it where the way is used in earnest."""

    UVLOOP: bool

    def opened(self, folder: Path) -> AbstractAsyncContextManager[Opened]:
        """Open the way, and close it with all its processes; ``folder`` is for logs and files."""
        ...
