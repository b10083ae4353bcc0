"""What is measured, and what every row has to be. Standard library only: this is read in the peers' environments too."""

# No "from __future__ import annotations" here: the tools' annotations are to be types, as every framework can read them.

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MESSAGE = "hi"
INSTRUCTION = "You are a test agent."
DONE = "done"
"""The user's message, the model's instruction, and its answer once it has the results of its calls."""

Tool = Callable[..., Awaitable[str]]


@dataclass(frozen=True)
class Case:
    """One kind of turn: how many calls the model asks for at once, how many tools it may choose from, what was said before."""

    name: str
    calls: int
    tools: int = 1
    messages: int = 0


ONE = Case("1 call", 1)
FOUR = Case("4 calls", 4)
SIXTEEN = Case("16 calls", 16)
MANY = Case("20 tools, 1 call", 1, tools=20)
CASES = (ONE, FOUR, SIXTEEN, MANY)

SMALL = Case("5 tools, 4 messages", 1, tools=5, messages=4)
HISTORY = Case("1 tool, 200 messages", 1, tools=1, messages=200)
LARGE = Case("300 tools, 200 messages", 1, tools=300, messages=200)
CLIENT_CASES = (SMALL, HISTORY, LARGE)
"""Those over the real ``openai`` client."""


class Turns(ABC):
    """A framework, ready for turns of one kind; each is a new conversation.

    ``model_calls`` and ``tool_runs`` count what was done. A row's fake model must decide by the last message that it is given,
    not by counting, and must make its calls anew each time, as an adapter does that has just read an answer.

    ``checks``: the framework checks arguments and converts them; a process makes sure of it before it measures. ``sloppy``: the
    model writes numbers as strings, which is what such a check has to mend.
    """

    measured = CASES
    checks = True
    result = "ok"

    def __init__(self, case: Case, *, sloppy: bool = False) -> None:
        self.case = case
        self.sloppy = sloppy
        self.model_calls = 0
        self.tool_runs = 0
        self.index: object = None
        """What the function was last given."""

    @abstractmethod
    async def turn(self) -> object:
        """The user's message, the calls, their results, the model's answer: the text of it."""

    async def forget(self) -> None:  # noqa: B027 (most rows keep nothing)
        """Forget the conversation. It is not timed."""

    def tools(self) -> list[Tool]:
        """The function that the model calls, and those that it could call."""

        async def noop(index: int, text: str, limit: float = 1.0) -> str:  # noqa: ARG001
            """Do nothing.

            Args:
                index: which call this is
                text: some words
                limit: how much at most
            """
            self.tool_runs += 1
            self.index = index
            return self.result

        return [noop, *(_other(number) for number in range(1, self.case.tools))]

    def arguments(self, number: int) -> dict[str, object]:
        """What the model gives the call of this number; ``limit`` is left to its default."""
        return {"index": str(number) if self.sloppy else number, "text": "some words"}

    def arguments_text(self, number: int) -> str:
        """The same as it comes over a wire. Put together by hand: no framework has to pay for how a fake writes JSON."""
        index = f'"{number}"' if self.sloppy else number
        return f'{{"index": {index}, "text": "some words"}}'


def _other(number: int) -> Tool:
    async def other(query: str, limit: int = 5) -> str:
        """Another tool.

        Args:
            query: what to look for
            limit: how many at most
        """
        return query * limit

    other.__name__ = other.__qualname__ = f"other_{number}"
    return other
