"""The record of one finished request to a model, as the terminal, the event stream and statistics read it."""

from __future__ import annotations

from typing import Literal

import msgspec


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):  # one for each request; a dataclass takes five times as long
    """One finished request to a model."""

    id: str = ""
    """Also the id of its turn."""
    time: float = 0.0
    """Its end, in seconds since 1970."""
    protocol: str = ""
    """"chat", "responses", "messages", "gemini", or "session" for each request of a live session."""
    model: str = ""
    agent: str = ""
    """The agent or role that answered."""
    session: str = ""
    """The key of the agent's session."""
    mode: Literal["", "native", "text"] = ""
    """How the model got its tools: "" if there were none."""
    format: str = ""
    """The format in which a text model got its tools."""
    constraint: Literal["", "grammar", "schema"] = ""
    """What constrained the last answer of a text model: "" without a constraint."""
    stream: bool = False
    tools: int = 0
    """How many tools were offered."""
    calls: tuple[str, ...] = ()
    """The names of the tools that the model called."""
    rounds: int = 0
    """How many requests the model's server was sent for it; 0 where they are not counted."""
    prompt_tokens: int | None = None
    """Those of all rounds; None where the upstream did not count them."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Those of the prompt that came from the server's cache."""
    seconds: float = 0.0
    status: int = 0
    """The HTTP status of the answer."""
    error: str = ""
    """The code and the message of a failure, without secrets."""
    reasons: tuple[str, ...] = ()
    """Why the model was asked again, and why ``mode`` is "text"."""
