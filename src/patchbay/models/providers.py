"""Model providers as data, and the encoding of tools for them.

A provider's row holds only what is documented or was observed; what a server may refuse is learned (``capabilities``). A new
provider is one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from patchbay.schema.dialects import DIALECTS, Dialect, NameRule
from patchbay.types import Message, ToolSpec

Body: TypeAlias = dict[str, Any]

REASONING_FIELDS = frozenset({"reasoning_content", "reasoning", "reasoning_details"})
"""The fields of an assistant's message in which servers give a model's reasoning."""
SENT_BACK = REASONING_FIELDS | {"extra_content"}
"""The fields of a message, or of a call in it, that are not part of OpenAI's API: sent only to servers that know them."""

_BLANK = " "
"""Placeholder for unknown reasoning; servers treat an empty one as missing."""


def unchanged(body: Body) -> Body:
    """Change nothing."""
    return body


@dataclass(frozen=True)
class Endpoint:
    """A URL of a provider, and the environment variable that holds the key for it."""

    base_url: str
    key_variable: str


@dataclass(frozen=True, kw_only=True)
class Provider:
    """A provider of models.

    ``name`` and ``other_names`` stand before the slash in ``provider/model``. ``endpoints``: the first whose key is set is used,
    else the first. ``base_url_variable`` is the environment variable that names another URL. ``hosts`` are those of its servers,
    in any URL. ``dialect`` encodes its tools, ``strict_dialect`` those whose schema it is to enforce.
    ``sent_back`` are the fields of SENT_BACK that it knows; ``prepare`` adapts the rest of a request's body to it.
    ``finish_reasons`` maps its values to OpenAI's; "error" means that the server failed. ``sdk`` is the package that talks to it.
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

    Reasoning is sent back within its turn only, after the last message of the user: most servers ignore older reasoning but count
    its tokens. With ``all_reasoning`` each assistant message has some, for servers that insist: messages without it (stored
    without, or written by another model) get a blank.
    """
    dropped = SENT_BACK - kept
    older = dropped | REASONING_FIELDS
    begin = 0 if all_reasoning else turn_start(messages) + 1
    out = [*without_fields(messages[:begin], older), *without_fields(messages[begin:], dropped)]
    if not all_reasoning:
        return out
    return [
        {**rest, "reasoning_content": _BLANK} if rest.get("role") == "assistant" and REASONING_FIELDS.isdisjoint(rest) else rest
        for rest in out
    ]


def turn_start(messages: Sequence[Message]) -> int:
    """Return the index of the user's last message, -1 without one; messages that show a tool's images do not count."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") == "user" and (index == 0 or messages[index - 1].get("role") != "tool"):
            return index
    return -1


def without_fields(messages: Sequence[Message], names: AbstractSet[str]) -> list[Message]:
    """Leave these fields out of messages, and of the calls in them; messages without them stay the same objects."""
    looked_for = names | {"tool_calls"}
    return [message if looked_for.isdisjoint(message) else _without(message, names) for message in messages]


def _without(message: Message, names: AbstractSet[str]) -> Message:
    calls = message.get("tool_calls")
    changes = isinstance(calls, list) and any(isinstance(call, Mapping) and not names.isdisjoint(call) for call in calls)
    if not changes and names.isdisjoint(message):
        return message
    kept = _omit(message, names)
    if changes:
        kept["tool_calls"] = [_omit(call, names) if isinstance(call, Mapping) else call for call in message["tool_calls"]]
    return kept


def _omit(fields: Mapping[str, Any], names: AbstractSet[str]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in names}


def system_for_developer(body: Body) -> Body:
    """Replace the role "developer" of OpenAI's newer models by "system"."""
    return {**body, "messages": developer_as_system(body["messages"])}


def developer_as_system(messages: Sequence[Message]) -> list[Message]:
    """Replace the role "developer" by "system"; other messages stay the same objects."""
    return [{**message, "role": "system"} if message.get("role") == "developer" else message for message in messages]


def renamed(body: Body, old: str, new: str) -> Body:
    """Rename a parameter; if both names are given, ``new`` wins."""
    if old not in body:
        return body
    value = body[old]
    rest = {key: value for key, value in body.items() if key != old}
    return rest if new in rest else {**rest, new: value}


def _max_tokens(body: Body) -> Body:
    return renamed(body, "max_completion_tokens", "max_tokens")


def in_turn(*steps: Callable[[Body], Body]) -> Callable[[Body], Body]:
    """Combine several ``prepare`` functions."""

    def prepare(body: Body) -> Body:
        for step in steps:
            body = step(body)
        return body

    return prepare


_NATIVE_URL = "https://generativelanguage.googleapis.com"
_COMPATIBLE_URL = f"{_NATIVE_URL}/v1beta/openai/"

# Requests stay bodies of chat completions until GeminiChatModel sends them.
_DIALECT = replace(DIALECTS["gemini"], shape=ToolSpec.to_openai)

GEMINI = Provider(
    name="gemini",
    other_names=("google",),
    # The SDK's own order: if both are set, the first one wins.
    endpoints=(Endpoint(_NATIVE_URL, "GOOGLE_API_KEY"), Endpoint(_NATIVE_URL, "GEMINI_API_KEY")),
    base_url_variable="GOOGLE_GEMINI_BASE_URL",
    dialect=_DIALECT,
    sdk="google-genai",
)

GEMINI_COMPATIBLE = Provider(
    name="gemini-compatible",
    endpoints=(Endpoint(_COMPATIBLE_URL, "GOOGLE_API_KEY"), Endpoint(_COMPATIBLE_URL, "GEMINI_API_KEY")),
    hosts=("generativelanguage.googleapis.com",),
    dialect=_DIALECT,
    sent_back=frozenset({"extra_content"}),
    prepare=system_for_developer,
)


GLM = Provider(
    name="glm",
    other_names=("zhipu", "zai"),
    endpoints=(
        Endpoint("https://open.bigmodel.cn/api/paas/v4/", "ZHIPUAI_API_KEY"),
        Endpoint("https://api.z.ai/api/paas/v4/", "ZAI_API_KEY"),
    ),
    base_url_variable="ZHIPUAI_BASE_URL",
    dialect=DIALECTS["glm"],
    hosts=("open.bigmodel.cn", "api.z.ai"),
    # Its thinking models continue from the reasoning that they are sent back between calls.
    sent_back=frozenset({"reasoning_content"}),
    prepare=in_turn(system_for_developer, _max_tokens),
    finish_reasons={
        "sensitive": "content_filter",
        "model_context_window_exceeded": "length",
        "network_error": "error",
    },
)


def _max_completion_tokens(body: Body) -> Body:
    """Its reasoning models refuse ``max_tokens``; all of its chat models take the newer name."""
    return renamed(body, "max_tokens", "max_completion_tokens")


OPENAI = Provider(
    name="openai",
    endpoints=(Endpoint("https://api.openai.com/v1", "OPENAI_API_KEY"),),
    base_url_variable="OPENAI_BASE_URL",
    hosts=("api.openai.com",),
    strict_dialect=DIALECTS["openai_strict"],
    prepare=_max_completion_tokens,
)


OTHER = Provider(name="", sent_back=SENT_BACK)


def _parallel(body: Body) -> Body:
    """Allow parallel calls, which are off by default here and on by default everywhere else."""
    if body.get("tools") and "parallel_tool_calls" not in body:
        return {**body, "parallel_tool_calls": True}
    return body


def _empty_content(body: Body) -> Body:
    """Replace a missing content of assistant messages by an empty one."""
    messages = [
        {**message, "content": ""} if message.get("role") == "assistant" and message.get("content") is None else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


QWEN = Provider(
    name="qwen",
    other_names=("dashscope",),
    endpoints=(Endpoint("https://dashscope.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),),
    base_url_variable="DASHSCOPE_BASE_URL",
    dialect=DIALECTS["qwen"],
    hosts=(
        "dashscope.aliyuncs.com",
        "dashscope-intl.aliyuncs.com",
        "dashscope-us.aliyuncs.com",
        "cn-hongkong.dashscope.aliyuncs.com",
    ),
    sent_back=frozenset({"reasoning_content"}),
    prepare=in_turn(system_for_developer, _empty_content, _parallel, _max_tokens),
)


STEPFUN = Provider(
    name="stepfun",
    other_names=("step",),
    endpoints=(
        Endpoint("https://api.stepfun.com/v1", "STEPFUN_API_KEY"),
        Endpoint("https://api.stepfun.com/v1", "STEP_API_KEY"),
    ),
    base_url_variable="STEPFUN_BASE_URL",
    hosts=("api.stepfun.com", "api.stepfun.ai"),
    # Here a name may not begin with a digit or a dash.
    dialect=replace(DIALECTS["stepfun"], names=NameRule(r"[A-Za-z_][A-Za-z0-9_-]*")),
    sent_back=frozenset({"reasoning", "reasoning_content"}),
    prepare=in_turn(system_for_developer, _max_tokens),
)


PROVIDERS: Final = (OPENAI, GEMINI, GLM, QWEN, STEPFUN)
"""The providers that ``provider/model`` may name."""

_NAMED: Final = {name: provider for provider in PROVIDERS for name in (provider.name, *provider.other_names)}
_HOSTED: Final = {host: provider for provider in (*PROVIDERS, GEMINI_COMPATIBLE) for host in provider.hosts}


def provider_named(name: str) -> Provider | None:
    """Return the provider of this name, in any case, or None."""
    return _NAMED.get(name.lower())


def provider_at(url: str) -> Provider:
    """Return the provider that serves an OpenAI-compatible API at this URL, or OTHER."""
    return _HOSTED.get(urlsplit(url).hostname or "", OTHER)
