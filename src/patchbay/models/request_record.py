"""The record of one finished request to a model, as the terminal, the event stream and statistics read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """One finished request to a model.

    ``id`` is also the id of its turn, ``time`` its end in seconds since 1970. ``protocol`` is "chat", "responses", "messages",
    "gemini", or "session" for each request of a live session, whose ``mode`` and ``reasons`` are not known. ``mode`` is how the
    model got its tools, "" if there were none. ``tools`` were offered; ``calls`` are the names of
    the tools that the model called. Tokens are those of all rounds, None where the upstream did not count them. ``error`` is the
    code and the message of a failure, without secrets. ``reasons`` say why the model was asked again, and why ``mode`` is "text".
    ``agent`` is the agent or role that answered, ``session`` the key of its session.
    """

    id: str = ""
    time: float = 0.0
    protocol: str = ""
    model: str = ""
    agent: str = ""
    session: str = ""
    mode: Literal["", "native", "text"] = ""
    stream: bool = False
    tools: int = 0
    calls: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    status: int = 0
    error: str = ""
    reasons: tuple[str, ...] = ()


def token_counts(usage: Any) -> dict[str, Any]:
    """Return the members of a record for OpenAI's ``usage``; empty for anything else."""
    if not isinstance(usage, Mapping):
        return {}
    given, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(given, int) and isinstance(written, int):
        return {"prompt_tokens": given, "completion_tokens": written}
    return {}
