"""Writes ``mutated.txt``: the golden cases, damaged as models and servers damage text. ``python tests/formats/fuzz/mutate.py``

The seed is fixed, so the same cases give the same file. ``test_fuzz.py`` reads each text: there is no expected reading, but all
ways to split it must agree.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
CASES = HERE.parent / "cases"
SEPARATOR = "\n%%%%%%%%\n"
SEED = 3
COUNT = 800

_FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<tool_calls>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "<function=", "</function>",
    "<parameter=", "</parameter>", '<invoke name="', "</invoke>", "<arg_key>", "</arg_value>", "<|tool_call|>", "<｜DSML｜", "<|channel|>",
    "<|message|>", "<|end|>", "<|python_tag|>", "<tool_call|>", '<|"|>', "functools[", "```", "```json\n", "~~~", "\n", " ", "{", "}", "[",
    "]", "(", ")", '"', "'", "\\", '\\"', ",", ":", ";", "<", ">", "|", "｜", "tide_table", "tide_table(", '{"name": "clock_now"}', "null",
    "Observation:", "✿RESULT✿", "functions.", "> ", "\r\n", "\x00", "\u2028", "é", "\U0001f30a", "assistant",
]  # fmt: skip


def cut(dice: random.Random, text: str, _other: str) -> str:
    """The end is missing."""
    return text[: dice.randrange(len(text))]


def beheaded(dice: random.Random, text: str, _other: str) -> str:
    """The beginning is missing."""
    return text[dice.randrange(len(text)) :]


def hole(dice: random.Random, text: str, _other: str) -> str:
    """A few characters are missing."""
    at = dice.randrange(len(text))
    return text[:at] + text[at + dice.randint(1, 12) :]


def doubled(dice: random.Random, text: str, _other: str) -> str:
    """A few characters stand twice."""
    at = dice.randrange(len(text))
    span = text[at : at + dice.randint(1, 30)]
    return text[:at] + span + text[at:]


def moved(dice: random.Random, text: str, _other: str) -> str:
    """A few characters stand elsewhere."""
    at = dice.randrange(len(text))
    end = at + dice.randint(1, 20)
    span, rest = text[at:end], text[:at] + text[end:]
    to = dice.randrange(len(rest) + 1)
    return rest[:to] + span + rest[to:]


def sprinkled(dice: random.Random, text: str, _other: str) -> str:
    """Pieces of markup stand where they do not belong."""
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(text) + 1)
        text = text[:at] + dice.choice(_FRAGMENTS) + text[at:]
    return text


def spliced(dice: random.Random, text: str, other: str) -> str:
    """It goes on as another text."""
    return text[: dice.randrange(len(text))] + other[dice.randrange(len(other)) :]


def nested(dice: random.Random, text: str, other: str) -> str:
    """Another text stands in the middle."""
    at = dice.randrange(len(text))
    return text[:at] + other + text[at:]


def quoted(dice: random.Random, text: str, _other: str) -> str:
    """All of it is quoted, or shown as code."""
    if dice.random() < 0.5:
        return "> " + text.replace("\n", "\n> ")
    fence = dice.choice(["```", "````", "~~~"])
    return f"{fence}{dice.choice(['', 'xml', 'python', 'json', 'text', 'tool_call'])}\n{text}\n{dice.choice([fence, ''])}"


def respelt(dice: random.Random, text: str, _other: str) -> str:
    """Quotes, pipes or line ends of another kind."""
    before, after = dice.choice(
        [('"', "'"), ("'", '"'), ("｜", "|"), ("|", "｜"), ("\n", "\r\n"), ("\n", ""), ("<", "&lt;"), ("_", "\\_")]
    )
    return text.replace(before, after)


MUTATIONS: list[Callable[[random.Random, str, str], str]] = [
    cut, beheaded, hole, doubled, moved, sprinkled, spliced, nested, quoted, respelt,
]  # fmt: skip


def texts() -> list[str]:
    """The golden cases' texts, in the order of their files."""
    return [
        case["text"]
        for file in sorted(CASES.glob("*.toml"))
        for case in tomllib.loads(file.read_text(encoding="utf-8")).get("case", [])
    ]


def mutated(seeds: list[str]) -> list[str]:
    """COUNT damaged texts, each damaged once to three times."""
    dice = random.Random(SEED)
    found: list[str] = []
    while len(found) < COUNT:
        text = dice.choice(seeds)
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            text = dice.choice(MUTATIONS)(dice, text, dice.choice(seeds)) or " "
        if len(text) < 700 and SEPARATOR not in text:
            found.append(text)
    return found


def main() -> None:
    """Write the file."""
    with (HERE / "mutated.txt").open("w", encoding="utf-8", newline="") as file:
        file.write(SEPARATOR.join(mutated(texts())))


if __name__ == "__main__":
    main()
