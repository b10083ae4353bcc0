"""Run coding agents through the proxy on a model that only writes text, and write what they did into the documentation.

    python scripts/clients.py                     every agent (the first time 1 GB from the npm registry, into .build/clients)
    python scripts/clients.py codex claude        some of them; the table in the documentation is not written

Each agent is given a task: read a file, change it, run a command. The upstream is scripted: it refuses tools and writes its calls as
text, in the format of another model family at each step. Exit status 1 where an agent did not do all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchbay.testing import ScriptedUpstream

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / ".build" / "clients"
PAGE = ROOT / "docs" / "guides" / "coding-agents.md"
TABLE = re.compile(r"(<!-- clients: begin -->\n).*?(<!-- clients: end -->)", re.DOTALL)
TASK = "Change the colour in note.txt to green."
LIMIT = 120.0
"""Seconds for one agent."""


def fenced(name: str, arguments: Mapping[str, Any]) -> str:
    return "```tool_call\n" + json.dumps({"name": name, "arguments": arguments}) + "\n```"


def hermes(name: str, arguments: Mapping[str, Any]) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def mistral(name: str, arguments: Mapping[str, Any]) -> str:
    return "[TOOL_CALLS]" + json.dumps([{"name": name, "arguments": arguments}])


def qwen_coder(name: str, arguments: Mapping[str, Any]) -> str:
    members = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{members}</function>\n</tool_call>"


FAMILIES = (fenced, hermes, mistral, qwen_coder)


@dataclass(frozen=True)
class Place:
    """Where an agent runs: its folder, its home, and the proxy."""

    folder: Path
    home: Path
    origin: str

    @property
    def note(self) -> str:
        return str(self.folder / "note.txt")


@dataclass(frozen=True)
class Agent:
    """``calls`` are the name and arguments of the calls to read, edit and run; ``start`` prepares a run and gives its command."""

    title: str
    package: str
    binary: str
    protocol: str
    calls: Callable[[Place], list[tuple[str, dict[str, Any]]]]
    start: Callable[[Place], tuple[list[str], dict[str, str]]]
    model: str = "m"


def _codex(place: Place) -> tuple[list[str], dict[str, str]]:
    (place.home / "config.toml").write_text(
        f'model = "gpt-5.5"\nmodel_provider = "x"\n[model_providers.x]\nname = "x"\nbase_url = "{place.origin}/v1"\n'
        'wire_api = "responses"\nenv_key = "PATCHBAY_KEY"\n'
    )
    command = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK]
    return command, {"CODEX_HOME": str(place.home), "PATCHBAY_KEY": "x"}


def _claude(place: Place) -> tuple[list[str], dict[str, str]]:
    command = ["-p", TASK, "--model", "m", "--allowedTools", "Bash,Read,Edit", "--output-format", "stream-json", "--verbose"]
    traffic = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    return command, {"ANTHROPIC_BASE_URL": place.origin, "ANTHROPIC_API_KEY": "x", **traffic}


def _gemini(place: Place) -> tuple[list[str], dict[str, str]]:
    settings = place.home / ".gemini" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
    command = ["-p", TASK, "-m", "m", "--yolo", "--skip-trust"]
    return command, {"GEMINI_API_KEY": "x", "GOOGLE_GEMINI_BASE_URL": place.origin}


def _qwen(place: Place) -> tuple[list[str], dict[str, str]]:
    variables = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": f"{place.origin}/v1", "OPENAI_MODEL": "m"}
    return ["-p", TASK, "--yolo", "--auth-type", "openai"], variables


SHOW = "tr a-z A-Z < note.txt > shown.txt"
PATCH = "*** Begin Patch\n*** Update File: note.txt\n@@\n-The colour is blue.\n+The colour is green.\n*** End Patch\n"
AGENTS = {
    "codex": Agent(
        "Codex", "@openai/codex", "codex", "Responses",
        lambda _: [("exec_command", {"cmd": "cat note.txt"}), ("apply_patch", {"input": PATCH}), ("exec_command", {"cmd": SHOW})],
        _codex,
    ),
    "claude": Agent(
        "Claude Code", "@anthropic-ai/claude-code", "claude", "Messages",
        lambda place: [
            ("Read", {"file_path": place.note}),
            ("Edit", {"file_path": place.note, "old_string": "blue", "new_string": "green"}),
            ("Bash", {"command": SHOW, "description": "show"}),
        ],
        _claude,
    ),
    "gemini": Agent(
        "gemini-cli", "@google/gemini-cli", "gemini", "generateContent",
        lambda place: [
            ("read_file", {"file_path": place.note}),
            ("replace", {"file_path": place.note, "old_string": "blue", "new_string": "green", "instruction": "Make it green."}),
            ("run_shell_command", {"command": SHOW}),
        ],
        _gemini,
    ),
    "qwen": Agent(
        "qwen-code", "@qwen-code/qwen-code", "qwen", "chat completions",
        lambda place: [
            ("read_file", {"file_path": place.note}),
            ("edit", {"file_path": place.note, "old_string": "blue", "new_string": "green"}),
            ("run_shell_command", {"command": SHOW, "is_background": False}),
        ],
        _qwen,
    ),
}  # fmt: skip


def install(agents: list[Agent]) -> None:
    """Install the packages of these agents that are missing. Raises CalledProcessError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    missing = [agent.package for agent in agents if not (BUILD / "node_modules" / agent.package).exists()]
    if missing:
        print(f"installing {', '.join(missing)} into {BUILD.relative_to(ROOT)}", flush=True)
        (BUILD / "package.json").write_text('{"private": true}')
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *missing], cwd=BUILD, check=True)


def version(agent: Agent) -> str:
    """The version of an installed agent."""
    package = json.loads((BUILD / "node_modules" / agent.package / "package.json").read_text(encoding="utf-8"))
    return str(package["version"])


def run(agent: Agent) -> tuple[bool, bool, bool]:
    """Run the task; return whether the agent read the file, changed it, and ran the command."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary, "work"), Path(temporary, "home")
        folder.mkdir()
        home.mkdir()
        (folder / "note.txt").write_text("The colour is blue.\n")
        requests: list[str] = []
        steps: list[str] = []

        def answer(body: Mapping[str, Any]) -> str:
            text = json.dumps(body["messages"])
            if "tool_call" not in text:  # no tools: a title for the session, say
                return "A note."
            requests.append(text)
            return steps.pop(0) if steps else "Done: the colour is green."

        with ScriptedUpstream(answer, tools="refuse", model=agent.model) as upstream:
            command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as proxy:
                try:
                    place = Place(folder, home, _origin(proxy))
                    calls = agent.calls(place)
                    steps += [family(*call) for family, call in zip(FAMILIES, calls, strict=False)]
                    arguments, variables = agent.start(place)
                    binary = BUILD / "node_modules" / ".bin" / agent.binary
                    subprocess.run(
                        [binary, *arguments],
                        cwd=folder,
                        env={**os.environ, "HOME": str(home), **variables},
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        timeout=LIMIT,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    print(f"{agent.title}: not done after {LIMIT:g} s", file=sys.stderr)
                finally:
                    proxy.terminate()
        shown = folder / "shown.txt"
        return (
            any("The colour is blue." in text for text in requests),
            (folder / "note.txt").read_text() == "The colour is green.\n",
            shown.exists() and "THE COLOUR IS" in shown.read_text(),
        )


def _origin(proxy: subprocess.Popen[str]) -> str:
    """The URL of a proxy that has just started. Raises RuntimeError."""
    assert proxy.stdout is not None
    for line in proxy.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            origin = found[0]
            for _ in range(100):
                try:
                    urllib.request.urlopen(f"{origin}/health", timeout=5).close()
                except OSError:
                    time.sleep(0.1)
                else:
                    return origin
    raise RuntimeError("the proxy did not start")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("agents", nargs="*", help=f"of {', '.join(AGENTS)} (default: all)")
    chosen = parser.parse_args().agents or list(AGENTS)
    if unknown := [name for name in chosen if name not in AGENTS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    if shutil.which("npm") is None:
        print("npm is not installed: no agent can be tried", file=sys.stderr)
        return 1
    agents = [AGENTS[name] for name in chosen]
    install(agents)
    rows, complete = [], True
    for agent in agents:
        print(f"{agent.title} {version(agent)} ...", flush=True)
        done = run(agent)
        complete = complete and all(done)
        cells = [agent.title, version(agent), agent.protocol, *("yes" if each else "**no**" for each in done)]
        rows.append("| " + " | ".join(cells) + " |")
    table = "\n".join(["| client | version | protocol | read | edit | command |", "|---|---|---|---|---|---|", *rows])
    print(table)
    if len(chosen) == len(AGENTS):
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(TABLE.sub(lambda found: f"{found[1]}{table}\n{found[2]}", page), encoding="utf-8")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
