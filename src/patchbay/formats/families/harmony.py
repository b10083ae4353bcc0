"""Harmony (gpt-oss): messages whose header names a channel, and a recipient where the message is a call.

    <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>

The prompt holds ``<|start|>assistant``. Headers are often damaged: what can be understood of one counts, and a message without a
channel that is known is the answer. Beam writes the same frames, with parameters in tags as a call's body.
"""

from __future__ import annotations

import re

from patchbay.formats.channelrows import Body, Channels, Header, Kind
from patchbay.formats.channels.stripped import StrippedHarmony
from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Thought
from patchbay.formats.values.names import ToolRules

_RECIPIENT = re.compile(r"\bto=([^\s<>{}]+)")
_CHANNEL = re.compile(r"\W*(analysis|commentary|final)(?![a-z])")
_ROLE = re.compile(r"\s*([\w.-]*)")
_FOREIGN = frozenset({"user", "system", "developer", "tool", "functions"})
_WORDS = re.compile(r"\s*(?:(?:assistant|analysis|commentary|final)\b[ \t]*|to=[\w.:-]+[ \t]*)*")
_IMPLIED = re.compile(r"\s*(?:(?:assistant|analysis|commentary|final|json|code|xml|to=[^\s<>{}]*)\s*)*")
IMPLIED_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code", "xml", "to=")


def _reads(header: Header) -> Body:
    known = header.has("<|channel|>", "<|constrain|>")
    texts = [text for _, text in header.pieces]
    role = _ROLE.match(header.text("<|start|>"))
    if role and role.group(1).partition(".")[0] in _FOREIGN:
        return Body(Kind.FOREIGN, doubtful=not known)
    damaged = any(_end(_IMPLIED, text) < len(text) for text in texts)
    recipient = next((name for name in _RECIPIENT.findall(" ".join(texts)) if name not in ("assistant", "user", "all")), "")
    if recipient:
        return Body(Kind.NAMED, recipient.removeprefix("functions."), doubtful=not known, damaged=damaged)
    channels = [found.group(1) for text in texts if (found := _CHANNEL.match(text))]
    kind = Kind.REASONING if channels and channels[-1] == "analysis" else Kind.CONTENT
    return Body(kind, doubtful=not known, damaged=damaged)


def implied(text: str, _rules: ToolRules) -> bool:
    """Whether a text is, or may become, words of a header whose start stands in the prompt."""
    rest = text[_end(_IMPLIED, text) :]
    return not rest or any(word.startswith(rest) for word in IMPLIED_WORDS)


def _end(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.match(text)
    return found.end() if found else 0


CHANNELS = Channels(
    _reads,
    starts=("<|start|>", "<|channel|>"),
    divides=("<|channel|>", "<|constrain|>"),
    alone=("<|message|>",),
    ends=("<|end|>", "<|call|>", "<|return|>"),
    implied=implied,
    implied_words=IMPLIED_WORDS,
    words=lambda text: _end(_WORDS, text),
)
_ANALYSIS = Thought(openers=("<|channel|>analysis<|message|>",), closers=("<|end|>",), loud=True, alone=False)

HARMONY = Format(
    "harmony",
    families=("gpt-oss",),
    thoughts=(_ANALYSIS,),
    leaks=TURNS,
    loose=False,
    channels=(CHANNELS,),
    opening=StrippedHarmony,
)
BEAM = Format("beam", families=("Beam",), thoughts=(_ANALYSIS,), leaks=TURNS, loose=False, channels=(CHANNELS,))
