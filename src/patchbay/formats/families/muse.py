"""Muse (ATEM): messages whose header names the recipient, and calls as tags in the messages to tools.

     to=self<|message|>I think.<|eom|><|start|>assistant to=user<|message|>Hello.<|eot|>

The recipient decides: what is said to the user is never a call, whatever stands in it.
"""

from __future__ import annotations

from patchbay.formats.channelrows import Body, Channels, Header, Kind
from patchbay.formats.families.common import TURNS
from patchbay.formats.families.harmony import IMPLIED_WORDS, implied
from patchbay.formats.rows import Format, Thought

_KINDS = {"self": Kind.REASONING, "user": Kind.QUOTED, "commentary": Kind.QUOTED, "developer": Kind.DROPPED}
_FOREIGN = ("user", "system", "developer", "tool")


def _reads(header: Header) -> Body | None:
    if header.has("<|channel|>", "<|constrain|>"):
        return None
    role, _, recipient = header.text("<|start|>", "").partition("to=")
    if role.strip() not in ("assistant", ""):
        return Body(Kind.FOREIGN, doubtful=True) if role.split()[0] in _FOREIGN else None
    recipient = recipient.strip()
    if not recipient:
        return Body(Kind.REASONING, doubtful=True)
    return Body(_KINDS.get(recipient, Kind.CALLS), recipient)


MUSE = Format(
    "muse",
    families=("Muse Spark", "Muse Glimmer"),
    thoughts=(Thought(openers=(" to=self<|message|>",), closers=("<|eom|>",), loud=True, alone=False),),
    leaks=TURNS,
    loose=False,
    channels=(
        Channels(
            _reads,
            starts=("<|start|>",),
            begins=("<|message|>",),
            ends=("<|eom|>", "<|eot|>"),
            leads=("<atem:function_calls>", "</atem:function_calls>"),
            implied=implied,
            implied_words=IMPLIED_WORDS,
        ),
    ),
)
