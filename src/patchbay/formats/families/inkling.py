"""Inkling: blocks that say themselves what they hold.

    <|message_model|>get_weather<|content_invoke_tool_json|>{"name": "get_weather", "args": {"city": "Rome"}}<|end_message|>

The prompt holds the first ``<|message_model|>``.
"""

from __future__ import annotations

from patchbay.formats.channelrows import Body, Channels, Header, Kind
from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Thought
from patchbay.formats.values.names import ToolRules

_KINDS = {
    "<|content_text|>": Kind.CONTENT,
    "<|content_thinking|>": Kind.REASONING,
    "<|content_invoke_tool_json|>": Kind.CALLS,
    "<|content_invoke_tool_text|>": Kind.CONTENT,
    "<|content_tool_error|>": Kind.CONTENT,
}
_MODEL = "<|message_model|>"
_FOREIGN = ("<|message_user|>", "<|message_system|>", "<|message_tool|>")
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")


def _reads(header: Header) -> Body:
    if header.has(*_FOREIGN):
        return Body(Kind.FOREIGN)
    name = header.text(_MODEL, "").strip()
    return Body(_KINDS.get(header.begin) or (Kind.CALLS if name else Kind.CONTENT), name)


def _implied(text: str, rules: ToolRules) -> bool:
    return rules.begins_name(text)


INKLING = Format(
    "inkling",
    families=("Inkling",),
    thoughts=(Thought(openers=("<|content_thinking|>",), closers=_ENDS, loud=True, alone=False),),
    leaks=TURNS,
    loose=False,
    channels=(
        Channels(
            _reads,
            starts=(_MODEL, *_FOREIGN),
            alone=tuple(_KINDS),
            ends=_ENDS,
            implied=_implied,
            implied_name=True,
            words=lambda _text: 0,
        ),
    ),
)
