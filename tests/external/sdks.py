"""Try SDKs and agent frameworks of Python on the proxy, and write what passed into the documentation.

    python tests/external/sdks.py            (the first time it installs tests/external/sdks/requirements.txt into .build/clients/sdks)

Each is tried on a proxy before a model that only writes text and whose server refuses tools, and on one before a model with tool
calls of its own: LangChain by the tests that it has for chat models. Exit status 1 where a test failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "sdks"))

from model import Model
from pages import GUIDES, make_environment, write_table

from patchbay.cli.children import listening
from patchbay.testing import ScriptedUpstream

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = HERE / "sdks"
REQUIREMENTS = TESTS / "requirements.txt"
VENV = ROOT / ".build" / "clients" / "sdks"
LIMIT = 900.0
"""Seconds for all tests."""
ROWS = [
    ("openai-agents", "openai-agents", "Responses", "OpenAIAgents"),
    ("pydantic-ai `OpenAIChatModel`", "pydantic-ai-slim", "chat completions", "PydanticAIChat"),
    ("pydantic-ai `OpenAIResponsesModel`", "pydantic-ai-slim", "Responses", "PydanticAIResponses"),
    ("pydantic-ai `AnthropicModel`", "pydantic-ai-slim", "Messages", "PydanticAIMessages"),
    ("pydantic-ai `GoogleModel`", "pydantic-ai-slim", "generateContent", "PydanticAIGemini"),
    ("LangChain `ChatOpenAI`", "langchain-openai", "chat completions", "OverChat"),
    ("LangChain `ChatOpenAI(use_responses_api=True)`", "langchain-openai", "Responses", "OverResponses"),
    ("LangChain `ChatAnthropic`", "langchain-anthropic", "Messages", "OverMessages"),
]
"""The title, package and protocol of each client, and the name of its test classes."""


def install() -> None:
    """Install the requirements anew where they have changed. Raises CalledProcessError."""
    stamp = VENV / "requirements.txt"
    if stamp.exists() and stamp.read_bytes() == REQUIREMENTS.read_bytes():
        return
    print(f"installing {REQUIREMENTS.relative_to(ROOT)} into {VENV.relative_to(ROOT)}", flush=True)
    make_environment(VENV, "-r", REQUIREMENTS)
    stamp.write_bytes(REQUIREMENTS.read_bytes())


def run(text_url: str, native_url: str) -> dict[str, Counter[str]]:
    """Run the tests; return how many of each class passed, failed and were skipped. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "PATCHBAY_TEXT_URL": text_url,
            "PATCHBAY_NATIVE_URL": native_url,
        }
        command = [VENV / "bin" / "python", "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}"]
        subprocess.run(command, cwd=TESTS, env=environment, timeout=LIMIT, check=False)
        found: dict[str, Counter[str]] = {}
        for case in ET.parse(report).iter("testcase"):
            outcome = {child.tag for child in case}
            word = "failed" if outcome & {"failure", "error"} else "skipped" if "skipped" in outcome else "passed"
            found.setdefault(case.attrib["classname"].rpartition(".")[2], Counter())[word] += 1
        return found


def versions() -> dict[str, str]:
    """The pinned versions by the names of their packages."""
    pins = (line.split("==") for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line)
    return {pin[0].lower(): pin[1] for pin in pins}


def in_words(outcomes: Counter[str]) -> str:
    """What became of the tests of a class."""
    words = [f"{outcomes['passed']} passed"]
    words += [f"**{outcomes['failed']} failed**"] if outcomes["failed"] else []
    words += [f"{outcomes['skipped']} skipped"] if outcomes["skipped"] else []
    return ", ".join(words)


def main() -> int:
    install()
    command = [sys.executable, "-m", "patchbay", "proxy", "--port", "0", "--upstream"]
    with (
        ScriptedUpstream(Model("text"), tools="refuse") as text,
        ScriptedUpstream(Model("native")) as native,
        listening([*command, text.url], name="patchbay proxy", timeout=60) as before_text,
        listening([*command, native.url], name="patchbay proxy", timeout=60) as before_native,
    ):
        found = run(before_text.url, before_native.url)
    pins = versions()
    lines = ["| client | version | protocol | text-only model | model with tool calls |", "|---|---|---|---|---|"]
    for title, package, protocol, name in ROWS:
        cells = [
            title,
            pins[package],
            protocol,
            *(in_words(found.get(f"Test{name}{kind}", Counter())) for kind in ("Text", "Native")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    write_table(GUIDES / "clients" / "sdks.md", "sdks", lines)
    complete = all(outcomes["passed"] and not outcomes["failed"] for outcomes in found.values()) and len(found) == 2 * len(ROWS)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
