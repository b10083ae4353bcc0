"""Properties of every reading of any text: nothing is invented, nothing is lost.

``is_within``: content and reasoning hold nothing that the text does not, in its order. ``lost_words``: each longer word of the text is
found again, in the content, in the reasoning, in a call or in what is left of a call that was cut off, unless it is markup or a
repair is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from patchbay.types import Reply

_WORD = re.compile(r"[A-Za-z]{4,}")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|[nrtbf])")

MARKUP = frozenset(
    """
    action actions action_start action_end action_input always analysis answer antml argument arguments assistant atem begin brave
    call called calling calls CALL_ID CDATA channel close code commentary constrain constraint content default directly dots
    DSML escape false final function functions functools GCML harmony input integer invoke inkling invalid json label longcat
    message minimax model name NONE none null number object observation open open_id opensource param parameter parameters
    params pipe plamo plugin print python python_start python_end query reasoning recipient request requests response result
    return role rfl seed self start steptml string suffix prefix tags text think thought tool tools tool_call tool_calls true
    type unused user arg_key arg_value arg_type iquest iquest_tool_call tool_sep inner item thinking sampling
    section args index output outputs sentence toolcall toolcalls functioncall boolean paramname error properties sample TEXT turn
    """.lower().split()
)
"""Words of markers, of JSON's keys and of Python's calls: they need not be found again. Compared by their letters only."""

_MARKUP_LETTERS = frozenset(part for word in MARKUP for part in _WORD.findall(word))


def is_within(part: str | None, text: str) -> bool:
    """Whether the characters of ``part`` stand in the text in this order, white space aside."""
    characters = iter("".join(text.split()))
    return all(char in characters for char in "".join((part or "").split()))


def lost_words(text: str, reply: Reply) -> list[str]:
    """Words of the text that are nowhere in the reply, and no markup.

    With repairs the list is empty, since a repair may drop words. The last word may be half a marker.
    """
    if reply.repairs:
        return []
    found = [reply.content or "", reply.reasoning or "", *(cut.raw for cut in reply.incomplete)]
    found += [leaf for call in reply.tool_calls for leaf in _leaves(call.name, call.raw_arguments)]
    everything = "\n".join(found)
    words = _words(text)
    if words and text.endswith(words[-1]):
        words.pop()
    return [word for word in dict.fromkeys(words) if word not in everything and word.lower() not in _MARKUP_LETTERS]


def _words(text: str) -> list[str]:
    return _WORD.findall(_ESCAPE.sub(_unescaped, text))


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16)) if found[1] else " "


def _leaves(name: str, arguments: str) -> Iterable[str]:
    yield name
    yield arguments
    stack: list[Any] = [json.loads(arguments)]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            yield from value
            stack.extend(value.values())
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, str):
            yield value
            if value[:1] in ("{", "["):
                try:
                    stack.append(json.loads(value))
                except ValueError:
                    pass
