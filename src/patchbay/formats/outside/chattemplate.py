"""What a chat template writes, read from its Jinja source without running it.

A template is a program, and only a Jinja engine can say what it writes for a given conversation. What is asked here needs less:
which texts it can write at all (``written``: its markers, also where they are put together from named pieces), and how the prompt
ends that asks for a reply (``ending``: does it open the reasoning?).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from patchbay.formats.outside.jinjatext import UNKNOWN, Choice, Loop, Node, pieces, texts

_SET = re.compile(r"set\s+(?P<name>\w+)\s*=")


@dataclass(frozen=True)
class Ending:
    """How the prompt for a reply ends: in open reasoning or not. ``open`` None: under the condition ``when``; "": not known."""

    open: bool | None
    when: str = ""


class ChatTemplate:
    """A template's source, cut up. Reading it never fails: what is no Jinja is text."""

    def __init__(self, source: str) -> None:
        found = list(pieces(source))
        self._constants: dict[str, str | None] = {}
        for kind, inner in found:
            if kind == "statement" and (told := _SET.match(inner)):
                self._remember(told["name"], inner[told.end() :])
        self._pieces = iter(found)
        self._stopped = "begin"
        self._nodes: tuple[Node, ...] = ()
        try:
            while self._stopped:  # what ends without a beginning ends nothing
                self._nodes += self._block()
            self.written = "".join(_flat(self._nodes))
            """All texts that the template can write, one after the other; what is not known is ``UNKNOWN``."""
        except RecursionError:
            self._nodes, self.written = (), source

    def ending(self, openers: Sequence[str], closers: Sequence[str]) -> Ending:
        """Whether the prompt that asks for a reply ends between an opener and its closer."""
        prompts = list(_generation_prompts(self._nodes))
        nodes = prompts[-1] if prompts else _behind_last_loop(self._nodes)
        if not any(_flat(nodes)):
            return Ending(open=None)
        ends = _Ends(openers, closers).after(nodes, {False: ""})
        return Ending(open=True in ends) if len(ends) == 1 else Ending(open=None, when=ends[True])

    def _remember(self, name: str, expression: str) -> None:
        nodes = texts(expression, self._constants)
        value = nodes[0] if len(nodes) == 1 and isinstance(nodes[0], str) and UNKNOWN not in nodes[0] else None
        # A name that is given two values is no constant.
        self._constants[name] = value if self._constants.get(name, value) == value else None

    def _block(self) -> tuple[Node, ...]:
        """Read up to the statement that ends or divides a block; it is in ``_stopped``, which is "" at the end."""
        nodes: list[Node] = []
        for kind, inner in self._pieces:
            word, _, rest = inner.partition(" ") if kind == "statement" else ("", "", "")
            if kind == "text":
                nodes.append(inner)
            elif kind == "output":
                nodes += texts(inner, self._constants)
            elif word == "if":
                nodes.append(self._choice(rest))
            elif word == "for":
                nodes.append(self._loop())
            elif word in ("elif", "else") or word.startswith("end"):
                self._stopped = inner
                return tuple(nodes)
        self._stopped = ""
        return tuple(nodes)

    def _choice(self, condition: str) -> Choice:
        ways = [(condition.strip(), self._inside("endif"))]
        while self._stopped.startswith("elif"):
            condition = self._stopped.removeprefix("elif").strip()
            ways.append((condition, self._inside("endif")))
        ways.append(("", self._inside("endif") if self._stopped.startswith("else") else ()))
        return Choice(tuple(ways))

    def _loop(self) -> Loop:
        nodes = self._inside("endfor")
        return Loop(nodes + self._inside("endfor") if self._stopped.startswith("else") else nodes)

    def _inside(self, end: str) -> tuple[Node, ...]:
        """Read up to ``end`` or a division; the ends of blocks that are not told apart here (macros, sets) are passed over."""
        nodes = self._block()
        while self._stopped and not self._stopped.startswith((end, "elif", "else")):
            nodes += self._block()
        return nodes


class _Ends:
    """Whether texts end inside of reasoning."""

    def __init__(self, openers: Sequence[str], closers: Sequence[str]) -> None:
        self._openers = frozenset(openers)
        self._marks = re.compile("|".join(map(re.escape, sorted({*openers, *closers}, key=len, reverse=True))) or "(?!)")

    def after(self, nodes: Iterable[Node], before: Mapping[bool, str]) -> dict[bool, str]:
        """The ways it can end, open or not, each with a condition that leads there ("" for the only one)."""
        states = dict(before)
        for node in nodes:
            if isinstance(node, str):
                marks = self._marks.findall(node)
                states = {marks[-1] in self._openers: ""} if marks else states
            elif isinstance(node, Loop):
                states = {**self.after(node.nodes, states), **states}
            else:
                states = self._chosen(node, states)
        return states

    def _chosen(self, choice: Choice, states: Mapping[bool, str]) -> dict[bool, str]:
        found: dict[bool, str] = {}
        passed: list[str] = []
        for condition, nodes in choice.ways:
            told = condition or " and ".join(f"not ({other})" for other in passed)
            passed.append(condition)
            for is_open, inner in self.after(nodes, dict.fromkeys(states, "")).items():
                found.setdefault(is_open, " and ".join(part for part in (states.get(is_open, ""), told, inner) if part))
        return found if len(found) > 1 else dict.fromkeys(found, "")


def _generation_prompts(nodes: Iterable[Node]) -> Iterator[tuple[Node, ...]]:
    """What is written only where a reply is asked for."""
    for node in nodes:
        if isinstance(node, Loop):
            yield from _generation_prompts(node.nodes)
        elif isinstance(node, Choice):
            for condition, inner in node.ways:
                if "add_generation_prompt" in condition and not condition.startswith("not ") and any(_flat(inner)):
                    yield inner
                else:
                    yield from _generation_prompts(inner)


def _behind_last_loop(nodes: Sequence[Node]) -> Sequence[Node]:
    loops = [index for index, node in enumerate(nodes) if isinstance(node, Loop)]
    return nodes[loops[-1] + 1 :] if loops else ()


def _flat(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
        elif isinstance(node, Loop):
            yield from _flat(node.nodes)
        else:
            for _, inner in node.ways:
                yield from _flat(inner)
