"""Cohere: a list of actions between special tokens (Command R7B and later), or after the word ``Action:`` (Command R+)."""

from __future__ import annotations

from patchbay.formats.channelrows import Body, Channels, Kind
from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Thought, Wrapper

_KINDS = {"<|START_THINKING|>": Kind.REASONING, "<|START_RESPONSE|>": Kind.CONTENT, "<|START_TEXT|>": Kind.CONTENT}
_THINKING_ENDS = "<|END_THINKING|>"

COMMAND = Format(
    "cohere_command",
    families=("Command R7B", "Command A", "Command A Reasoning", "Cohere2 MoE"),
    wrappers=(Wrapper(openers=("<|START_ACTION|>",), closers=("<|END_ACTION|>",)),),
    thoughts=(Thought(openers=("<|START_THINKING|>",), closers=(_THINKING_ENDS,), loud=True),),
    leaks=TURNS,
    channels=(
        Channels(
            lambda header: Body(_KINDS[header.begin]),
            alone=tuple(_KINDS),
            ends=("<|END_RESPONSE|>", "<|END_TEXT|>"),
            thought_ends=(_THINKING_ENDS,),
            stops=("<|START_ACTION|>",),
            # citations: <co>what is said</co: 0:[1]>, the older <co: 1>what is said</co: 1>
            noise=("<co>", "<co:", "</co>", "</co:"),
        ),
    ),
)
COMMAND_R_PLUS = Format(
    "command_r_plus",
    families=("Command R, R+",),
    wrappers=(
        Wrapper(
            openers=("Action:\n```json", "Action: ```json", "Action:```json"),
            keeps=len("```json"),
            idle=("directly-answer", "directly_answer"),
        ),
    ),
    leaks=TURNS,
)
