"""Constrained replies of a model with random weights on llama.cpp, asked for through Patchbay: ``python -m constraints.random_replies``.

Whatever such a model writes, it has no reason to write a valid call: each one that comes is the constraint's work. Each reply has
a drawn set of tools, a format and a policy (``tool_choice``, ``parallel_tool_calls``, ``response_format``), whole or streamed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import openai

from patchbay.formats.render import WRITERS
from patchbay.schema import SchemaValidator
from patchbay.types import ToolSpec
from support.chat_clients import Choice, chat, wrapped_client
from support.llama import running_llama

from .drawn_tools import draw_schema, draw_tools

FORMATS: Final = ["fenced", *WRITERS]
TOOL_SETS: Final = 100
_TOKENS: Final = 300


@dataclass
class Tally:
    """What became of the replies. ``invalid``: a line for each that breaks a rule."""

    counts: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    """Complete replies with calls, by format."""
    invalid: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Request:
    """A drawn request."""

    format: str
    specs: tuple[ToolSpec, ...]
    policy: dict[str, Any]
    stream: bool
    reasoning: bool
    seed: int

    @property
    def needed(self) -> bool:
        """Whether there has to be a call."""
        return self.policy["tool_choice"] not in ("auto", "none")

    def problem(self, choice: Choice, *, was_cut: bool) -> str:
        """The rule that an answer breaks, "" for none. ``was_cut``: it had all the tokens that it was allowed."""
        for index, (name, arguments) in enumerate(choice.calls):
            if name not in [spec.name for spec in self._allowed]:
                return f"{name!r} may not be called"
            validator = next(SchemaValidator(spec.name, spec.parameters) for spec in self.specs if spec.name == name)
            if was_cut and index == len(choice.calls) - 1 and not _is_json(arguments):
                continue  # (a stream has sent a part of it)
            if errors := validator.validate(arguments).errors:
                return f"{name}: {arguments} {errors}"
        if len(choice.calls) > 1 and not self.policy.get("parallel_tool_calls", True):
            return "several calls"
        if was_cut:
            return "" if choice.calls or choice.finish_reason == "length" else f"cut, and ended with {choice.finish_reason}"
        if self.needed:
            return "" if choice.calls and not (choice.content or "").strip() else f"no call, or text: {choice.content!r}"
        wanted = self.policy.get("response_format")
        if wanted is not None and not choice.calls:
            schema = wanted["json_schema"]["schema"]
            return " ".join(SchemaValidator("answer", schema).validate(choice.content or "").errors)
        return ""

    @property
    def _allowed(self) -> list[ToolSpec]:
        chosen = self.policy["tool_choice"]
        if chosen == "none":
            return []
        return [spec for spec in self.specs if not isinstance(chosen, dict) or spec.name == chosen["function"]["name"]]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def draw_request(number: int, seed: int) -> Request:
    """The request of a number: every format in turn, with one of the sets of tools."""
    rng = random.Random(f"{seed} {number}")
    specs = draw_tools(random.Random(f"{seed} tools {rng.randrange(TOOL_SETS)}"))
    named = {"type": "function", "function": {"name": rng.choice(specs).name}}
    policy: dict[str, Any] = {"tool_choice": rng.choice(["required", "required", "required", named, "auto", "none"])}
    if rng.random() < 0.6:
        policy["parallel_tool_calls"] = False
    if policy["tool_choice"] == "auto" and rng.random() < 0.5:
        schema = {"type": "object", "properties": {"a": draw_schema(rng), "b": draw_schema(rng)}, "required": ["a", "b"]}
        policy["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    is_streamed, has_reasoning = rng.random() < 0.5, rng.random() < 0.5
    return Request(FORMATS[number % len(FORMATS)], tuple(specs), policy, is_streamed, has_reasoning, number)


@cache
def _client(url: str, name: str, reasoning: bool) -> openai.OpenAI:
    """A client with working tools for one format. Nothing is asked twice, and the prompt is short: no model reads it."""
    options = {"constrain": "force", "choice_rounds": 0, "template": lambda _specs: "Call a tool."}
    return wrapped_client(f"{url}/v1", tools="text", format=name, reasoning=reasoning, **options)


def ask(url: str, request: Request, tally: Tally) -> None:
    """Ask for one reply and judge it."""
    tools = [spec.to_openai() for spec in request.specs]
    try:
        answer = chat(
            _client(url, request.format, request.reasoning), "random", stream=request.stream, tools=tools, seed=request.seed, temperature=1.2,
            max_tokens=_TOKENS, messages=[{"role": "user", "content": "Go."}], **request.policy,
            **({"stream_options": {"include_usage": True}} if request.stream else {}),
        )  # fmt: skip
        choice, was_cut = answer.first, answer.usage.completion_tokens >= _TOKENS
        problem = request.problem(choice, was_cut=was_cut)
        tally.counts["cut" if was_cut else "calls" if choice.calls else "text"] += 1
        tally.formats[request.format] += bool(choice.calls)
    except openai.BadRequestError as error:
        # Some formats have no marker that tells a text from a call: then there is no grammar that has both.
        has_no_grammar = not request.needed and "nothing tells a text from a call" in str(error)
        problem = "" if has_no_grammar else str(error)
        tally.counts["without a grammar"] += has_no_grammar
    except openai.APIError as error:
        problem = str(error)
    if problem:
        tally.invalid.append(f"{request.format} {request.seed}: {problem}")


@contextmanager
def random_server(seed: int) -> Iterator[str]:
    """llama.cpp's server with random weights during the block; its URL."""
    from .random_model import write_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        write_model(path, seed)
        with running_llama(path) as url:
            yield url


def run(count: int, seed: int) -> Tally:
    """Ask for so many replies."""
    tally = Tally()
    with random_server(seed) as url:
        for number in range(count):
            ask(url, draw_request(number, seed), tally)
    return tally


def main() -> None:
    """Print the figures, and each invalid reply; exit with 1 if there was one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="replies")
    parser.add_argument("--seed", type=int, default=1, help="of the weights, the tools and the policies")
    given = parser.parse_args()
    tally = run(given.count, given.seed)
    least = min(map(tally.formats.__getitem__, FORMATS))
    figures = f"{given.count} replies in {len(FORMATS)} formats, {len(tally.invalid)} invalid; {dict(tally.counts)}"
    sys.stdout.write("\n".join([*tally.invalid, figures, f"At least {least} replies with calls in each format"]) + "\n")
    sys.exit(bool(tally.invalid))


if __name__ == "__main__":
    main()
