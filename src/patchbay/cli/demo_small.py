"""``patchbay demo --model small``: a real model of 135 million parameters calls tools, and answers from their results.

The questions are chosen so that the model can answer them. How it does on other requests is measured, and printed at the end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from patchbay.cli.children import listening
from patchbay.cli.demo import show, tool
from patchbay.cli.llama_server import require_llama
from patchbay.cli.model_files import SMOLLM2, find_packaged

if TYPE_CHECKING:
    import openai

RATES: Final = (
    "On 40 other requests, on which nothing was tuned: 40 valid calls of an offered tool, 39 of the right one, 34 with exactly "
    "the right arguments. Fewer than half of its answers are sensible."
)
"""How often the model is right: bench.constrained, requests ``unseen``, row ``copy``; answers: 7 to 9 of 20, judged by hand."""

_CODE: Final = """
import importlib.util, json, sys

def count_letter(letter, word):
    return f"The letter {letter} is {word.count(letter)} times in the word {word}."

def multiply(a, b):
    return f"{a} times {b} is {a * b}."

def count_lines(module):
    with open(importlib.util.find_spec(module).origin, encoding="utf-8") as file:
        return f"The module {module} has {sum(1 for _ in file)} lines."

print(globals()[sys.argv[1]](**json.loads(sys.argv[2])))
"""
_TEXT: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
TOOLS: Final = [
    tool("count_letter", "Count how often a letter is in a word.", letter=_TEXT, word=_TEXT),
    tool("multiply", "Multiply two integers.", a=_INTEGER, b=_INTEGER),
    tool("count_lines", "Count the lines of a Python module.", module=_TEXT),
]
_EXAMPLE: Final = [
    {"role": "system", "content": "Answer the question with the result."},
    {"role": "user", "content": "Question: How tall is the Eiffel Tower?\nResult: The Eiffel Tower is 330 metres tall."},
    {"role": "assistant", "content": "The Eiffel Tower is 330 metres tall."},
]
"""What an answer is, for a model of this size: a request with tools and their results would confuse it."""


@dataclass(frozen=True)
class Question:
    """A question, and the call that it needs."""

    text: str
    name: str
    arguments: Mapping[str, Any]


QUESTIONS: Final = (
    Question("How often is the letter r in the word strawberry?", "count_letter", {"letter": "r", "word": "strawberry"}),
    Question("What is 1234 times 5678?", "multiply", {"a": 1234, "b": 5678}),
    Question("How many lines has the Python module argparse?", "count_lines", {"module": "argparse"}),
)


def run() -> str:
    """Run the demo; return what was not as expected, "" if nothing. Raises what ``patchbay local`` does."""
    import openai

    require_llama()
    find_packaged(SMOLLM2)  # here its progress is shown: the output of the command below is not
    command = [sys.executable, "-m", "patchbay", "local", "--port", "0"]
    print("patchbay: starting llama.cpp with the model", file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="patchbay-demo-") as folder,
        listening([*command, "--log-file", f"{folder}/log"], name="patchbay local", timeout=120.0) as gateway,
        openai.OpenAI(base_url=gateway.url, api_key="unused", max_retries=0, timeout=120.0) as client,
    ):
        show(
            "A real model of 135 million parameters calls tools",
            f"client  the openai Python package, process {os.getpid()}",
            f"proxy   {gateway.url}, process {gateway.pid}",
            f"model   {SMOLLM2.name} on llama.cpp, which takes no `tools`",
        )
        problems = []
        for question in QUESTIONS:
            try:
                problems.append(ask(client, question, log=Path(folder, "log") if question is QUESTIONS[0] else None))
            except openai.OpenAIError as error:
                return f"the client got {type(error).__name__}: {error}\nThe proxy printed:\n{''.join(gateway.printed)}"
    show("What to expect of it", f"These {len(QUESTIONS)} questions are chosen. {RATES}")
    return "\n".join(filter(None, problems))


def ask(client: openai.OpenAI, question: Question, *, log: Path | None) -> str:
    """Let the model call a tool, run it, and let the model answer; show it all, and return what is wrong ("" if nothing is).

    ``log`` is the proxy's, to show what it sent.
    """
    create: Any = client.chat.completions.create
    show("client → proxy, with 3 tools and tool_choice required", question.text)
    fields = {"tool_choice": "required", "extra_body": {"patchbay": {"copy_arguments": True}}}
    message = {"role": "user", "content": question.text}
    choice = create(model="small", messages=[message], tools=TOOLS, temperature=0, max_tokens=200, **fields).choices[0]
    if log is not None:
        sent = next(
            entry["body"] for line in log.read_text().splitlines() if (entry := json.loads(line))["event"] == "upstream_request"
        )
        show("proxy → model: the tools as text", *(each["content"] for each in sent["messages"]))
        show("proxy → llama.cpp: a grammar of the valid calls, with words to copy", sent.get("grammar", "none"))
    call = choice.message.tool_calls[0].function
    show(f"proxy → client: finish_reason {choice.finish_reason}", f"{call.name} {call.arguments}")
    command = [sys.executable, "-I", "-c", _CODE, call.name, call.arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603  (no shell)
    result = done.stdout.strip() or f"Error: {done.stderr.strip().rpartition(chr(10))[2]}"
    show(f"client: runs {call.name} in another process", result)
    asked = {"role": "user", "content": f"Question: {question.text}\nResult: {result}"}
    answer = create(model="small", messages=[*_EXAMPLE, asked], temperature=0, max_tokens=80).choices[0].message.content
    show("proxy → client: an answer from that result, without tools", answer)
    if (question.name, question.arguments) != (call.name, json.loads(call.arguments)):
        return f"{question.text} needs another call than {call.name} {call.arguments}"
    lost = _numbers(result) - _numbers(question.text) - _numbers(answer)
    return f"the answer lacks {', '.join(sorted(lost))}: {answer}" if lost else ""


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"[0-9]+", text))
