"""How ``patchbay demo`` looks to a person: each step under who sent it to whom, long texts shortened.

What lives here: turning a Step into lines for a terminal of 80 columns. What does not: deciding or checking
anything; ``--json`` prints the same steps whole.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from patchbay.cli.demo_talk import Step

_WIDTH = 80
_HEAD_LINES = 12
_TAIL_LINES = 4
_CLIENT, _PROXY, _MODEL, _TOOL = "cyan", "green", "magenta", "yellow"


class Page:
    """Prints steps as they happen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._width = min(console.width, _WIDTH)
        self._contract_seen = ""

    def opening(self, *, model_url: str, model_pid: int, proxy_url: str, proxy_pid: int) -> None:
        """Say who takes part, and that the model is a scripted one."""
        self._console.print(Text("A model that only writes text calls two tools", "bold"))
        self._console.print()
        self._line("client", "the openai Python package, in this process", style=_CLIENT)
        self._line("proxy", f"patchbay proxy, process {proxy_pid}, on {proxy_url}", style=_PROXY)
        self._line(
            "model",
            f"process {model_pid}, on {model_url}: scripted, no language model. It streams real chat completions, "
            "refuses `tools` as Ollama does, and answers by what stands in its prompt.",
            style=_MODEL,
        )

    def step(self, step: Step) -> None:
        """Print one step."""
        getattr(self, f"_{step.kind}")(**step.data) if step.kind != "question" else self._question(step)
        self._console.file.flush()

    def closing(self, problems: list[str]) -> None:
        """Say how it went."""
        self._console.print()
        if not problems:
            self._console.print(Text("All as expected: every call ran once, every value reached the answer.", "bold green"))
        for problem in problems:
            self._console.print(Text(f"Not as expected: {problem}", "bold red"))

    def _question(self, step: Step) -> None:
        streamed = step.data["streamed"]
        self._console.print()
        title = f" {step.conversation}. {'streamed' if streamed else 'in one piece'} "
        self._console.print(Text(title.center(self._width, "─"), "bold"))
        self._side("client → proxy", f"chat.completions.create(tools=…, stream={streamed})", _CLIENT)
        for message in step.data["messages"]:
            self._line(message["role"], message["content"])
        for tool in step.data["tools"]:
            function = tool["function"]
            fields = function["parameters"]["properties"].items()
            signature = ", ".join(f"{name}: {schema['type']}" for name, schema in fields)
            self._line("tool", f"{function['name']}({signature})", style=_TOOL)

    def _refused(self, *, status: int, text: str) -> None:
        self._side("proxy → model", "first as it came, with `tools`", _PROXY)
        self._line("model", f"{status}: {text}")
        self._line("proxy", "learns that, and writes the tools into the prompt from now on")

    def _contract(self, *, messages: list[dict[str, Any]], keys: list[str]) -> None:
        self._side("proxy → model", f"the contract, in its prompt (sent: {', '.join(keys)})", _PROXY)
        prompt = messages[0]["content"]
        if prompt == self._contract_seen:
            self._line("system", f"the same {len(prompt)} characters as before: the prompt cache holds")
            messages = messages[1:]
        self._contract_seen = prompt
        self._messages(messages)

    def _framed(self, *, messages: list[dict[str, Any]], keys: list[str]) -> None:
        self._side("proxy → model", f"what was said and found, as text (sent: {', '.join(keys)})", _PROXY)
        self._messages(messages)

    def _written(self, *, text: str) -> None:
        self._side("model → proxy", "the raw text", _MODEL)
        self._quote(text)

    def _calls(
        self,
        *,
        content: str,
        calls: list[dict[str, Any]],
        finish_reason: str | None,
        text_pieces: list[str],
        argument_pieces: list[list[str]],
    ) -> None:
        how = f", content in {len(text_pieces)} deltas" if text_pieces else ""
        self._side("proxy → client", f"finish_reason {finish_reason}{how}", _PROXY)
        self._line("content", content)
        for index, call in enumerate(calls):
            function = call["function"]
            self._line("call", f"{function['name']} {function['arguments']}", style=_TOOL)
            self._line("", call["id"])
            if argument_pieces:
                pieces = argument_pieces[index]
                self._line("", f"its arguments in {len(pieces)} deltas: {'·'.join(pieces)}")

    def _result(self, *, name: str, arguments: dict[str, Any], result: str) -> None:
        self._side(
            "client",
            f"runs {name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})",
            _CLIENT,
        )
        self._line("result", result, style=_TOOL)

    def _answer(self, *, text: str, pieces: int) -> None:
        self._side("proxy → client", f"the answer{f', in {pieces} deltas' if pieces else ''}", _PROXY)
        self._quote(text)

    def _messages(self, messages: Iterable[dict[str, Any]]) -> None:
        for message in messages:
            content = message["content"]
            self._quote(content if isinstance(content, str) else json.dumps(content), label=message["role"])

    def _side(self, who: str, what: str, colour: str) -> None:
        self._console.print()
        self._console.print(Text.assemble((f"{who:<15}", f"bold {colour}"), (what, "bold")))

    def _line(self, label: str, text: str, *, style: str = "", bar: str = "") -> None:
        """Print a label and its text, wrapped under itself."""
        lines = Text(text, style).wrap(self._console, self._width - 12 - len(bar)) or [Text()]
        for line in lines:
            line.rstrip()
            self._console.print(Text.assemble((f"  {label:<10}{bar}", "dim"), line))
            label = ""

    def _quote(self, text: str, *, label: str = "") -> None:
        """Print a text behind a bar, without its middle when it is long."""
        lines = text.splitlines()
        left_out = len(lines) - _HEAD_LINES - _TAIL_LINES
        if left_out > 1:
            lines[_HEAD_LINES:-_TAIL_LINES] = [f"[… {left_out} more lines …]"]
        for line in lines:
            self._line(label, line, bar="│ ")
            label = ""
