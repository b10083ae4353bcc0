"""What a server was found to refuse by name, so that it is asked for only once.

There are servers that know no ``stream_options``, that give a model's reasoning and will not have it back, or want all of it back
for ever, and models that answer in a stream only. They say so in an error. Whether tools are taken at all is learnt elsewhere
(``modes``), below the client.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from patchbay.errors import UpstreamError
from patchbay.models.providers.quirks import REASONING_FIELDS, SENT_BACK, keep_fields
from patchbay.types import Message

Answer = TypeVar("Answer")

_MOST_MODELS: Final = 1024
_STATUSES: Final = frozenset({400, 422})
_DISPENSABLE: Final = SENT_BACK | {"stream_options", "parallel_tool_calls"}
"""What may be left out of a request without changing what it asks for."""
_NAMED: Final = {name: re.compile(rf"\b{name}\b") for name in _DISPENSABLE} | {
    # A word of many errors: it must be quoted, or part of a path.
    "reasoning": re.compile(r"""(?:['"`]|\.)reasoning\b""")
}
_ONLY_STREAMS: Final = re.compile(
    r"non-streaming calls|only supports? (?:the )?stream|stream\W{0,3}=\W{0,3}false"
    r"|stream\W{0,3}(?:must|should|has to) be (?:set to )?true",
    re.IGNORECASE,
)


_WANTS_REASONING: Final = re.compile(
    r"missing\W+reasoning(?:_content|_details)?\b"
    r"|\breasoning(?:_content|_details)?\b[^.]{0,60}?(?:is missing|is required|must be (?:passed|sent|given|provided))",
    re.IGNORECASE,
)


@dataclass
class Known:
    """What is known of one model at one server.

    ``refused`` are names of parameters and fields. ``only_streams``: it answers in a stream only. ``all_reasoning``: it wants a
    reasoning with every message of the assistant's. ``no_system_role``: it takes no system instruction.
    """

    refused: set[str] = field(default_factory=set)
    only_streams: bool = False
    all_reasoning: bool = False
    no_system_role: bool = False


class Learnt:
    """What is known of the models of one server. Shared by the clients that talk to it; not persisted, and bounded."""

    def __init__(self) -> None:
        self._models: dict[Any, Known] = {}

    def of(self, model: Any) -> Known:
        """What is known of the model of this name."""
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MOST_MODELS:
                del self._models[next(iter(self._models))]
            known = self._models[model] = Known()
        return known


async def asked(
    ask: Callable[[dict[str, Any]], Awaitable[Answer]], body: dict[str, Any], known: Known, sent_back: frozenset[str]
) -> Answer:
    """Ask, and ask again without what the server refuses by name, and with what it misses; what it wanted is kept to.

    ``sent_back`` are the fields of messages that its provider knows. What ``ask`` raises last is raised.
    """
    refused, all_reasoning, demanded = set(known.refused), known.all_reasoning, False
    while True:
        sent = _with_fields(body, sent_back, refused, all_reasoning=all_reasoning)
        try:
            answer = await ask(sent)
        except UpstreamError as error:
            if demands_reasoning(error):
                refused -= REASONING_FIELDS
                all_reasoning = demanded = True
                if _with_fields(body, sent_back, refused, all_reasoning=True) == sent:
                    raise
                continue
            named = complained_of(error, sent)
            if demanded:
                named -= REASONING_FIELDS
            if not named:
                raise
            refused |= named
        else:
            known.refused, known.all_reasoning = refused, all_reasoning
            return answer


def _with_fields(body: dict[str, Any], kept: frozenset[str], refused: set[str], *, all_reasoning: bool) -> dict[str, Any]:
    messages = keep_fields(body["messages"], kept, all_reasoning=all_reasoning and not kept.isdisjoint(REASONING_FIELDS))
    return without({**body, "messages": messages}, refused)


def complained_of(error: UpstreamError, body: Mapping[str, Any]) -> set[str]:
    """What of ``body`` the server's error names, and could be left out; nothing where that is not what it is about."""
    if error.upstream_status not in _STATUSES:
        return set()
    said = f"{error} {error.body}"
    return {name for name in _dispensable(body) if _NAMED[name].search(said)}


def demands_stream(error: UpstreamError) -> bool:
    """Whether the error says that the model answers in a stream only."""
    return error.upstream_status in _STATUSES and _ONLY_STREAMS.search(f"{error} {error.body}") is not None


def demands_reasoning(error: UpstreamError) -> bool:
    """Whether the error says that a message lacks the reasoning that led to it."""
    return error.upstream_status in _STATUSES and _WANTS_REASONING.search(f"{error} {error.body}") is not None


def without(body: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Leave these parameters out of a body, and these fields out of its messages."""
    if not names or names.isdisjoint(_dispensable(body)):
        return body
    smaller = {key: value for key, value in body.items() if key not in names}
    smaller["messages"] = [_message_without(message, names) for message in body["messages"]]
    return smaller


def _dispensable(body: Mapping[str, Any]) -> set[str]:
    """The names of all in a body that could be left out."""
    found = {"stream_options"} & body.keys()
    if body.get("parallel_tool_calls") is True:
        found.add("parallel_tool_calls")
    for message in body["messages"]:
        found |= SENT_BACK & message.keys()
        for call in message.get("tool_calls") or ():
            found |= SENT_BACK & call.keys()
    return found


def _message_without(message: Message, names: AbstractSet[str]) -> Message:
    kept = {key: value for key, value in message.items() if key not in names}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        kept["tool_calls"] = [{key: value for key, value in call.items() if key not in names} for call in calls]
    return kept
