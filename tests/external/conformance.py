"""Run MCP's conformance suite and foreign peers on the registry and on its client, and write what passed into the documentation.

    python tests/external/conformance.py            everything (the first time 500 MB from npm and PyPI, into .build/conformance)
    python tests/external/conformance.py --details  each failed check of the suite as well

The suite's tools are served through the registry (tests/external/conformance_server.py), and its servers are mounted as any MCP server
(tests/external/conformance_client.py). The peers (tests/external/conformance_peers.py) are the Inspector, FastMCP both ways, and the protocol's reference
servers. No failure is expected: exit status 1 where a scenario fails.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from conformance_peers import NPM_PACKAGES, PYTHON_PACKAGES, Peers, Scenarios
from pages import GUIDES, make_environment, write_table

from patchbay.cli.children import listening

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / ".build" / "conformance"
SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
PACKAGES = ("node@24", SUITE, *NPM_PACKAGES)
PYTHON = BUILD / "venv" / "bin" / "python"
"""The interpreter with FastMCP and the servers in Python."""
REVISIONS = ("2025-11-25", "2026-07-28")
LIMIT = 300.0
"""Seconds for one run of the suite."""
CLIENT_MILLISECONDS = 120_000
"""For one scenario of the client: the suite starts all of them at once."""

_SCENARIO = re.compile(r"^[✓✗] (?P<name>\S+): (?P<passed>\d+) passed, (?P<failed>\d+) failed", re.MULTILINE)
_NOT_SCORED = re.compile(r"^  [✓✗] (?P<name>\S+) \((?P<why>[\w-]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """The scenarios of one run with their passed and failed checks, and why some are not scored."""

    scenarios: dict[str, tuple[int, int]]
    unscored: dict[str, str]

    @property
    def scored(self) -> dict[str, tuple[int, int]]:
        return {name: checks for name, checks in self.scenarios.items() if name not in self.unscored}

    @property
    def others(self) -> dict[str, tuple[int, int]]:
        """What is not scored, without extensions of the protocol."""
        return {name: checks for name, checks in self.scenarios.items() if self.unscored.get(name, "extension") != "extension"}

    @property
    def is_complete(self) -> bool:
        return bool(self.scored) and not any(failed for _, failed in self.scored.values())


def install() -> None:
    """Install node, the suite and the peers where they are missing. Raises CalledProcessError."""
    BUILD.mkdir(parents=True, exist_ok=True)
    stamp = BUILD / "packages.txt"
    wanted = " ".join([*PACKAGES, *PYTHON_PACKAGES])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    print(f"installing {wanted} into {BUILD.relative_to(ROOT)}", flush=True)
    (BUILD / "package.json").write_text('{"private": true}', encoding="utf-8")
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES], cwd=BUILD, check=True)
    make_environment(BUILD / "venv", *PYTHON_PACKAGES)
    stamp.write_text(wanted, encoding="utf-8")


def suite(*arguments: str) -> str:
    """Run the suite, and return its output."""
    script = BUILD / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    command = [str(BUILD / "node_modules" / ".bin" / "node"), str(script), *arguments]
    done = subprocess.run(
        command, cwd=BUILD, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False
    )
    return done.stdout


def run_client(revision: str, *, details: bool) -> Outcome:
    """Run the scenarios of the client for a revision of the protocol."""
    program = f"{sys.executable} {HERE / 'conformance_client.py'}"
    return run("client", revision, "--command", program, "--timeout", str(CLIENT_MILLISECONDS), details=details)


def run_server(revision: str, url: str, *, details: bool) -> Outcome:
    """Run the scenarios of the server at ``url`` for a revision of the protocol."""
    return run("server", revision, "--url", url, details=details)


def run(half: str, revision: str, *arguments: str, details: bool) -> Outcome:
    """Run what a revision requires of one half, and print the failed checks where there are any."""
    results = BUILD / f"{half}-{revision}"
    shutil.rmtree(results, ignore_errors=True)
    output = suite(half, *arguments, "--requirements", revision, "-o", str(results))
    scenarios = {found["name"]: (int(found["passed"]), int(found["failed"])) for found in _SCENARIO.finditer(output)}
    outcome = Outcome(scenarios, {found["name"]: found["why"] for found in _NOT_SCORED.finditer(output)})
    if details or not outcome.is_complete:
        for file in sorted(results.rglob("checks.json")):
            name = str(file.parent.relative_to(results))
            for check in json.loads(file.read_text(encoding="utf-8")):
                if check["status"] in ("FAILURE", "WARNING") and "server-tasks-" not in name:
                    print(f"  {name}: {check['id']}: {str(check.get('errorMessage') or check['description'])[:300]}")
    return outcome


def outcome_of(scenarios: Scenarios) -> Outcome:
    """Return what a peer has checked as an outcome, and print what failed."""
    found = {}
    for name, checks in scenarios.items():
        if failed := [each for each, is_right in checks.items() if not is_right]:
            print(f"  {name}: {', '.join(failed)}")
        found[name] = (len(checks) - len(failed), len(failed))
    return Outcome(found, {})


def row(half: str, other: str, outcome: Outcome) -> str:
    def shown(scenarios: dict[str, tuple[int, int]]) -> tuple[str, str]:
        passed, failed = (sum(counts) for counts in zip(*scenarios.values(), strict=True)) if scenarios else (0, 0)
        return f"{sum(not failed for _, failed in scenarios.values())} of {len(scenarios)}", f"{passed} of {passed + failed}"

    return "| " + " | ".join([half, other, *shown(outcome.scored), shown(outcome.others)[0] if outcome.others else ""]) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--details", action="store_true", help="print each failed check")
    details = parser.parse_args().details
    if shutil.which("npm") is None:
        print("npm is not installed: the suite cannot be run", file=sys.stderr)
        return 1
    install()
    outcomes: dict[tuple[str, str], Outcome] = {}
    with listening([sys.executable, str(HERE / "conformance_server.py")], name="the server", timeout=60) as server:
        for revision in REVISIONS:
            print(f"server, {revision} ...", flush=True)
            outcomes["server", revision] = run_server(revision, f"{server.url}/mcp", details=details)
        peers = Peers(BUILD, PYTHON)
        print("server, the Inspector and FastMCP ...", flush=True)
        clients = peers.clients(f"{server.url}/mcp")
        print("client, FastMCP and other servers ...", flush=True)
        servers = peers.servers(f"{server.url}/mcp")
    for revision in REVISIONS:
        print(f"client, {revision} ...", flush=True)
        outcomes["client", revision] = run_client(revision, details=details)
    outcomes |= {("server", name): outcome_of(scenarios) for name, scenarios in clients.items()}
    outcomes |= {("client", name): outcome_of(scenarios) for name, scenarios in servers.items()}
    rows = [row(half, other, outcome) for (half, other), outcome in outcomes.items()]
    head = ["| half | revision, or peer | scenarios | checks | also run, not required |", "|---|---|---|---|---|"]
    write_table(GUIDES / "mcp-server.md", "conformance", [*head, *rows])
    return 0 if all(outcome.is_complete for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
