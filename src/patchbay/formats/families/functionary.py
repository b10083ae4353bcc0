"""Functionary: each message begins with whom it is for, ``all`` or a tool.

    all
    Let me look.>>>get_weather
    {"city": "Rome"}

The prompt holds the first ``>>>`` (v3.0 and v3.2), or ``<|from|>assistant`` and ``<|recipient|>`` (v2). The first are no special
tokens: they count only with a line that is all or an offered tool's name.
"""

from __future__ import annotations

import re

from patchbay.formats.channelrows import Body, Channels, Header, Kind
from patchbay.formats.families.common import TURNS
from patchbay.formats.families.llama import PYTHON_TAG
from patchbay.formats.families.tags import FUNCTION
from patchbay.formats.rows import Format
from patchbay.formats.values.names import ToolRules

_ALL = "all"
_NAME = re.compile(r"[\w.-]{1,64}")


def _to(recipient: str) -> Body:
    return Body(Kind.CONTENT) if recipient == _ALL else Body(Kind.NAMED, recipient)


def _names(text: str, rules: ToolRules) -> bool:
    """Whether a text behind a marker is a recipient, or may become one."""
    return _opens(text, rules) or (rules.any_name and _NAME.fullmatch(text) is not None)


def _opens(text: str, rules: ToolRules) -> bool:
    """The same for what a reply begins with, where the prompt holds the marker: any word would be a name if no tool is known."""
    return text == text.strip() and (_ALL.startswith(text) or rules.begins_name(text))


def _first(text: str, rules: ToolRules) -> bool:
    return _names(text.removesuffix("\n"), rules)


def _reads(header: Header) -> Body:
    return _to(header.text(">>>", ""))


def _reads_v2(header: Header) -> Body:
    sender = header.text("<|from|>").strip()
    if sender not in ("assistant", ""):
        return Body(Kind.FOREIGN)
    return _to(header.text("<|recipient|>", "").strip())


V32 = Format(
    "functionary_v32",
    families=("Functionary v3.0, v3.2",),
    leaks=TURNS,
    loose=False,
    channels=(
        Channels(
            _reads,
            starts=(">>>",),
            begins=("\n",),
            ends=("<|eot_id|>", "<|eom_id|>"),
            fits=_names,
            implied=_opens,
            implied_words=(_ALL,),
            implied_name=True,
            loud=False,
        ),
    ),
)
V2 = Format(
    "functionary_v2",
    families=("Functionary v2.2 to v2.5",),
    leaks=TURNS,
    loose=False,
    channels=(
        Channels(
            _reads_v2,
            starts=("<|from|>",),
            divides=("<|recipient|>",),
            begins=("<|content|>",),
            ends=("<|stop|>",),
            implied=_first,
            implied_words=(_ALL,),
            implied_name=True,
        ),
    ),
)
V31 = Format(
    "functionary_v31",
    families=("Functionary v3.1", "Llama 3.1 with calls of one's own"),
    wrappers=(FUNCTION, PYTHON_TAG),
    leaks=TURNS,
    loose=False,
)
