"""What a server was found to refuse by name, so that it is asked for only once.

There are servers that know no ``stream_options``, that give a model's reasoning and will not have it back, and models that answer
in a stream only. They say so in an error. Whether tools are taken at all is learnt elsewhere (``modes``), below the client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from patchbay.errors import UpstreamError
from patchbay.models.providers.quirks import SENT_BACK
from patchbay.types import Message

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


@dataclass
class Learnt:
    """What is known of one server. Shared by the clients that talk to it; not persisted.

    ``refused`` are names of parameters and fields, ``only_streaming`` are names of models that answer in a stream only.
    """

    refused: set[str] = field(default_factory=set)
    only_streaming: set[Any] = field(default_factory=set)


def complained_of(error: UpstreamError, body: Mapping[str, Any]) -> set[str]:
    """What of ``body`` the server's error names, and could be left out; nothing where that is not what it is about."""
    if error.upstream_status not in _STATUSES:
        return set()
    said = f"{error} {error.body}"
    return {name for name in _dispensable(body) if _NAMED[name].search(said)}


def demands_stream(error: UpstreamError) -> bool:
    """Whether the error says that the model answers in a stream only."""
    return error.upstream_status in _STATUSES and _ONLY_STREAMS.search(f"{error} {error.body}") is not None


def without(body: dict[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    """Leave these parameters out of a body, and these fields out of its messages."""
    if names.isdisjoint(_dispensable(body)):
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
