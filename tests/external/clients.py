"""Run coding agents through the proxy on a model that only writes text, and write what they did into the documentation.

    python tests/external/clients.py                     every agent (the first time 2 GB from npm and PyPI, into .build/clients)
    python tests/external/clients.py codex claude        some of them; the tables in the documentation are not written

Each agent is started with the settings of ``patchbay proxy --print-env`` and given a task: read a file, change it, run a command. The
upstream is scripted: it refuses tools and writes its calls as text, in the format of another model family at each step. Exit status 1
where an agent did not do all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coding_agents import AFTER, AGENTS, BEFORE, Agent, Place
from pages import GUIDES, make_environment, write_table

from patchbay.cli.children import listening
from patchbay.cli.client_settings import client_settings
from patchbay.testing import ScriptedUpstream

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / ".build" / "clients"
HEADER = ["| client | version | protocol | read | edit | command |", "|---|---|---|---|---|---|"]
NODE = "node@24"
"""From npm: the newest agents need a newer one than a system may have, and npm installs what the node that runs it allows."""
PATH = f"{BUILD / 'node_modules' / '.bin'}{os.pathsep}{os.environ['PATH']}"
LIMIT = 120.0
"""Seconds for one agent."""


def install(agents: list[Agent]) -> None:
    """Install the packages of these agents that are missing. Raises CalledProcessError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    missing = [each for each in agents if not program(each).exists()]
    if missing:
        print(f"installing {', '.join(each.package for each in missing)} into {BUILD.relative_to(ROOT)}", flush=True)
    if packages := [each.package for each in missing if each.registry == "npm"]:
        if not (BUILD / "package.json").exists():  # (npm removes what it does not name)
            (BUILD / "package.json").write_text('{"private": true}')
        for wanted in ([NODE], packages):
            command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *wanted]
            subprocess.run(command, cwd=BUILD, env={**os.environ, "PATH": PATH}, check=True)
    for agent in missing:
        if agent.registry == "PyPI":
            make_environment(BUILD / agent.package, agent.package, *agent.beside)


def program(agent: Agent) -> Path:
    """The installed program of an agent."""
    name = client_settings(agent.client, origin="", base_path="/v1").command.split()[0]
    return BUILD / ("node_modules/.bin" if agent.registry == "npm" else f"{agent.package}/bin") / name


def version(agent: Agent) -> str:
    """The version of an installed agent."""
    if agent.registry == "npm":
        package = json.loads((BUILD / "node_modules" / agent.package / "package.json").read_text(encoding="utf-8"))
        return str(package["version"])
    code = f"import importlib.metadata; print(importlib.metadata.version({agent.package!r}))"
    return subprocess.run(
        [program(agent).with_name("python"), "-c", code], check=True, capture_output=True, text=True
    ).stdout.strip()


def run(agent: Agent) -> tuple[bool, bool, bool]:
    """Run the task; return whether the agent read the file, changed it, and ran the command."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Place(Path(temporary, "work"), Path(temporary, "home"))
        place.folder.mkdir()
        place.home.mkdir()
        (place.folder / "note.txt").write_text(BEFORE)
        requests: list[str] = []
        replies = list(agent.replies(place))

        def answer(body: Mapping[str, Any]) -> str:
            text = json.dumps(body["messages"])
            if agent.has_tools and "tool_call" not in text:
                return "A note."
            requests.append(text)
            return replies.pop(0) if replies else "Done: the colour is green."

        with ScriptedUpstream(answer, tools="refuse", model=agent.model) as upstream:
            command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream", upstream.url]
            with listening(command, name="patchbay proxy", timeout=60) as proxy:
                _start(agent, place, proxy.url.removesuffix("/v1"))
        shown = place.folder / "shown.txt"
        return (
            any(BEFORE.strip() in text for text in requests),
            (place.folder / "note.txt").read_text() == AFTER,
            shown.exists() and "THE COLOUR IS" in shown.read_text(),
        )


def _start(agent: Agent, place: Place, origin: str) -> None:
    """Run an agent to its end, with the settings of ``--print-env`` and nothing else of this process's environment."""
    settings = client_settings(agent.client, origin=origin, base_path="/v1", model=agent.model, key="x")
    if settings.file:
        file = place.home / settings.file
        file.parent.mkdir(parents=True)
        file.write_text(settings.text)
    # LiteLLM would wait for its list of prices.
    environment = {"PATH": PATH, "HOME": str(place.home), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    try:
        done = subprocess.run(
            [program(agent), *shlex.split(settings.command)[1:], *agent.arguments],
            cwd=place.folder,
            env={**environment, **settings.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{agent.title}: not done after {LIMIT:g} s", file=sys.stderr)
    else:
        if done.returncode:
            print(f"{agent.title}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(AGENTS)} (default: all)")
    chosen = parser.parse_args().clients or list(AGENTS)
    if unknown := [name for name in chosen if name not in AGENTS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    if shutil.which("npm") is None:
        print("npm is not installed: no agent can be tried", file=sys.stderr)
        return 1
    install([AGENTS[name][0] for name in chosen])
    rows: dict[str, list[str]] = {}
    for agent in (agent for name in chosen for agent in AGENTS[name]):
        print(f"{agent.title} {version(agent)} ...", flush=True)
        done = ("yes" if each else "**no**" for each in run(agent))
        rows.setdefault(agent.client, []).append("| " + " | ".join([agent.title, version(agent), agent.protocol, *done]) + " |")
    whole = [*HEADER, *(row for each in rows.values() for row in each)]
    if len(chosen) < len(AGENTS):
        print("\n".join(whole))
    else:
        write_table(GUIDES / "coding-agents.md", "clients", whole)
        for client, each in rows.items():
            write_table(GUIDES / "clients" / f"{client}.md", "clients", [*HEADER, *each])
    return 1 if "**no**" in "".join(whole) else 0


if __name__ == "__main__":
    sys.exit(main())
