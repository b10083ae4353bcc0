"""One request to a model's server, with its answer, for what keeps and shows it (``patchbay.server.turns``)."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from patchbay.models.answer_reader import AnswerReader
    from patchbay.models.options import TextOptions

Call = tuple[str, str, str]
"""The id, the name and the arguments of a call."""

Counts = tuple[int | None, int | None, int | None]
"""Tokens of the prompt, of the answer, and of the prompt's part that came from the server's cache."""

NO_COUNTS: Final[Counts] = (None, None, None)


class Attempt(msgspec.Struct, eq=False, gc=False):  # a struct: one is made for each request
    """One request to the model's server. Times are in seconds since 1970, 0.0 until they are known.

    ``body`` is the request as it was sent, ``source`` the request that it was made of, and ``tools`` how many were offered.
    ``options``, ``prefilled`` and ``begins_json`` say how its answer is read. ``reason`` says why the model was asked again after
    it, ``unconstrained`` why its calls were not constrained. ``is_superseded``: its answer was dropped for an earlier one.

    ``reader`` reads the answer, until the turn ends; then ``text`` is what the model wrote, ``reasoning`` what its server sent
    apart, and ``repairs`` how many the reading of the text took. ``is_cut``: some of the content is not kept.
    """

    body: bytes | None
    source: bytes | None
    began: float
    purpose: str = "answer"
    mode: Literal["", "native", "text"] = ""
    constraint: Literal["", "grammar", "schema"] = ""
    unconstrained: str = ""
    tools: int = 0
    options: TextOptions | None = None
    first: float = 0.0
    ended: float = 0.0
    status: int = 0
    reason: str = ""
    reader: AnswerReader[Any] | None = None
    text: str | None = None
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    counts: Counts = NO_COUNTS
    repairs: int = 0
    prefilled: bool = False
    begins_json: bool = False
    is_whole: bool = False
    is_superseded: bool = False
    is_cut: bool = False

    def drop_content(self) -> None:
        """Drop bodies and answer: the turn has its share of the store."""
        self.body = self.source = self.text = None
        self.calls, self.reasoning, self.is_cut = (), "", True


class AttemptLog(Protocol):
    """Keeps attempts."""

    def add_attempt(self, attempt: Attempt) -> None:
        """Keep an attempt that begins, and changes until it has ended."""


ATTEMPT_LOG: Final[ContextVar[AttemptLog | None]] = ContextVar("patchbay.attempt_log", default=None)
"""The log of the requests that ChatModels make in this context; None without one."""


def counts_of(usage: Any) -> Counts:
    """Return the tokens in OpenAI's ``usage``; None for each that it does not count."""
    if type(usage) is not dict and not isinstance(usage, Mapping):
        return NO_COUNTS
    given, written, details = usage.get("prompt_tokens"), usage.get("completion_tokens"), usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if type(details) is dict else usage.get("cached_tokens")
    return (
        given if type(given) is int else None,
        written if type(written) is int else None,
        cached if type(cached) is int else None,
    )
