"""Law 4: text is never lost; and law 2 for the parser: no text makes it raise."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from patchbay.formats.parser import plan_of
from patchbay.types import Reply

from .texts import FRAGMENTS, TOOLS, options, read_whole, solid, texts

_REASONING_TAGS = re.compile(r"</?think>")
_SPECIAL = re.compile("|".join(map(re.escape, plan_of("auto", "think").control_tokens)))
"""Tokens that are no text, and go away at its ends."""
_NO_REASONING = re.compile(r"(?:<think>|\A)\s*</think>")
"""Tags with nothing between them: they go away where reasoning is not asked for too."""


@given(texts, options)
@example("\ud800", {"tools": None})
@example("\x00" * 10, {"tools": None})
def test_without_calls_and_reasoning_the_content_is_the_text(text: str, chosen: dict[str, Any]) -> None:
    reply = read_whole(text, **chosen)
    if not (reply.tool_calls or reply.incomplete or reply.reasoning is not None or _SPECIAL.search(text)):
        asked = chosen.get("reasoning", True)
        if _NO_REASONING.search(text) or (asked and (_REASONING_TAGS.search(text) or chosen.get("reasoning_prefilled"))):
            assert solid(_REASONING_TAGS.sub("", text)) == solid(_REASONING_TAGS.sub("", reply.content or ""))
        else:
            assert (text or None) == reply.content


@given(texts, options)
def test_without_calls_every_character_is_content_or_reasoning(text: str, chosen: dict[str, Any]) -> None:
    """Only the reasoning tags themselves may go."""
    reply = read_whole(text, **chosen)
    if not (reply.tool_calls or reply.incomplete or _SPECIAL.search(text)):
        kept = sorted(solid(_REASONING_TAGS.sub("", (reply.reasoning or "") + "\n" + (reply.content or ""))))
        assert sorted(solid(_REASONING_TAGS.sub("", text))) == kept


@given(texts, options)
def test_content_and_reasoning_are_parts_of_the_text(text: str, chosen: dict[str, Any]) -> None:
    reply = read_whole(text, **chosen)
    for part in (reply.content, reply.reasoning):
        characters = iter(solid(text))
        assert all(char in characters for char in solid(part)), "in the order of the text"


def all_text(reply: Reply) -> str:
    """All text in a reply."""
    calls = "\n".join(f"{call.name}\n{call.raw_arguments}" for call in reply.tool_calls)
    cut = "\n".join(call.raw for call in reply.incomplete)
    return "\n".join((reply.content or "", reply.reasoning or "", calls, cut))


_BODIES = (
    '{"name": "f", "arguments": {"a": "b"}}', '{"name": "g", "arguments": {}}', '[{"name": "f", "arguments": {}}, {"name": "Alice"}]',
    '{"name": "f"}', "{}", "x = 1", "",
)  # fmt: skip
_LABELS = ("tool_call", "json", "", "md", "python", "tool_calls:json")
_LINES = ["<think>hm</think>", "`x`", "> quoted", "- item", "*/ // /*", "{", "}", '"', "Some prose.", ""]
_BLOCKS = [f"{fence}{label}\n{body}\n{fence}" for fence in ("```", "````", "~~~") for label in _LABELS for body in _BODIES]
whole_lines = st.lists(st.sampled_from(_LINES) | st.sampled_from(_BLOCKS), max_size=6)
"""Lines and whole blocks, between which words are set that must be found again."""


@given(whole_lines, options)
def test_words_between_blocks_are_kept_in_order(lines: list[str], chosen: dict[str, Any]) -> None:
    chosen.pop("reasoning_prefilled", None)
    words = [f"w{number}w" for number in range(len(lines) + 1)]
    text = words[0] + "".join(f"\n{line}\n{word}" for line, word in zip(lines, words[1:], strict=True))
    reply = read_whole(text, **chosen)
    found = re.findall(r"w\d+w", reply.content or "")
    assert words == found


@given(st.lists(st.sampled_from([*FRAGMENTS, "w#w"]), max_size=14), options)
def test_a_word_anywhere_is_in_the_reply(fragments: list[str], chosen: dict[str, Any]) -> None:
    """Also inside of blocks that are odd in every way: a word is prose, reasoning, an argument, or part of a call that was cut off."""
    text, count = "", 0
    for fragment in fragments:
        text += fragment.replace("#", str(count)) if fragment == "w#w" else fragment
        count += fragment == "w#w"
    everything = all_text(read_whole(text, **chosen))
    # What stands behind an opener on its line, and JSON's comments, are markup.
    markup = re.sub(r"(```|~~~)[^\n]*|//[^\n]*|/\*.*?(\*/|$)", "", text, flags=re.DOTALL)
    assert [word for word in re.findall(r"w\d+w", markup) if word not in everything] == []


@given(texts)
@example("```tool_call patch\n```")
def test_different_tool_names_leave_tagged_text_unchanged(text: str) -> None:
    """With no tool of that name, nothing at all is a call."""
    other = [{"type": "function", "function": {"name": "only_this_one"}}]
    assert () == read_whole(text, tools=other).tool_calls
    assert {call.name for call in read_whole(text, tools=TOOLS).tool_calls} <= {tool["function"]["name"] for tool in TOOLS}
