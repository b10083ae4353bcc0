"""What is particular to one provider of models, as data and pure functions over a request's body.

What lives here: the row that describes a provider, and the changes that more than one row makes. What does not: a provider's own
row (each has its file beside this one), clients and requests (``patchbay.models.openai``, ``gemini``). A row may only say what
was documented or seen; what a server merely may refuse is learnt from its refusal, not written down here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from patchbay.schema.dialects import DIALECTS, Dialect
from patchbay.types import Message

Body: TypeAlias = dict[str, Any]

REASONING_FIELDS = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
"""The fields of an assistant's message in which servers give a model's reasoning."""
SENT_BACK = REASONING_FIELDS | {"extra_content"}
"""The fields of a message, or of a call in it, that are no part of OpenAI's API: sent only to who knows them."""

_BLANK = " "
"""What stands for a reasoning that nobody has: an empty one is taken for none."""


def unchanged(body: Body) -> Body:
    """Change nothing."""
    return body


@dataclass(frozen=True)
class Endpoint:
    """One place where a provider answers: its URL, and the environment variable that holds the key for it."""

    base_url: str
    key_variable: str


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider of models.

    ``name`` and ``other_names`` stand before the slash in ``provider/model``. ``endpoints``: the first whose key is set is used,
    else the first. ``base_url_variable`` is the environment variable that names another URL. ``hosts`` are those of its servers,
    in any URL. ``dialect`` is how it is told of tools, ``strict_dialect`` of those that it shall hold the model to.
    ``sent_back`` are the fields of SENT_BACK that it knows; ``prepare`` makes the rest of a request's body one that it takes.
    ``finish_reasons`` translates its words into OpenAI's; "error" stands for a failure of the server. ``sdk`` is the wire it is
    spoken to on.
    """

    name: str
    other_names: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    base_url_variable: str | None = None
    hosts: tuple[str, ...] = ()
    dialect: Dialect = DIALECTS["openai_chat"]
    strict_dialect: Dialect | None = None
    sent_back: frozenset[str] = frozenset()
    prepare: Callable[[Body], Body] = unchanged
    finish_reasons: Mapping[str, str] = field(default_factory=dict)
    sdk: Literal["openai", "google-genai"] = "openai"


def keep_fields(messages: Sequence[Message], kept: frozenset[str], *, all_reasoning: bool = False) -> list[Message]:
    """Leave out of the messages, and of the calls in them, the fields of SENT_BACK that are not ``kept``.

    A reasoning is sent back within its turn only: behind the last message of the user. Servers that want it want it there, and
    most that do not look at an older one would still count its tokens. With ``all_reasoning`` each message of the assistant's has
    one, for servers that insist: one that another model wrote, or that was stored without it, gets a blank.
    """
    dropped = SENT_BACK - kept
    older = dropped | REASONING_FIELDS
    begin = 0 if all_reasoning else _turn(messages) + 1
    out = [*_all_without(messages[:begin], older), *_all_without(messages[begin:], dropped)]
    if not all_reasoning:
        return out
    return [
        {**rest, "reasoning_content": _BLANK} if rest.get("role") == "assistant" and REASONING_FIELDS.isdisjoint(rest) else rest
        for rest in out
    ]


def _turn(messages: Sequence[Message]) -> int:
    """Where the running turn begins: at the last message of the user's. What shows a tool's pictures is none of those."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user" and (index == 0 or messages[index - 1].get("role") != "tool"):
            return index
    return -1


def _all_without(messages: Sequence[Message], dropped: frozenset[str]) -> list[Message]:
    looked_for = dropped | {"tool_calls"}
    return [message if looked_for.isdisjoint(message) else _without(message, dropped) for message in messages]


def _without(message: Message, dropped: frozenset[str]) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(isinstance(call, Mapping) and not dropped.isdisjoint(call) for call in calls):
        if dropped.isdisjoint(message):
            return message
        return {key: value for key, value in message.items() if key not in dropped}
    kept = {key: value for key, value in message.items() if key not in dropped}
    kept["tool_calls"] = [
        {key: value for key, value in call.items() if key not in dropped} if isinstance(call, Mapping) else call for call in calls
    ]
    return kept


def system_for_developer(body: Body) -> Body:
    """Say "system" where OpenAI's newer models say "developer": elsewhere that role is not known."""
    messages = [{**message, "role": "system"} if message.get("role") == "developer" else message for message in body["messages"]]
    return {**body, "messages": messages}


def renamed(body: Body, old: str, new: str) -> Body:
    """Say a parameter by the name that the provider has for it; where both are given, ``new`` counts."""
    if old not in body:
        return body
    value = body[old]
    rest = {key: value for key, value in body.items() if key != old}
    return rest if new in rest else {**rest, new: value}


def in_turn(*steps: Callable[[Body], Body]) -> Callable[[Body], Body]:
    """One ``prepare`` of several."""

    def prepare(body: Body) -> Body:
        for step in steps:
            body = step(body)
        return body

    return prepare
