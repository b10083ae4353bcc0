"""The tables of docs/guides/agents.md and docs/guides/sessions.md list what there is: every field with its default, every topic with its data."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from patchbay.agents import BaseSessionService, LlmAgent, RunConfig, event_bus

ROOT = Path(__file__).resolve().parents[2]


def table(page: str, head: str, *, after: str = "") -> dict[str, list[str]]:
    """The rows of the first table behind ``after`` whose head begins so, by what stands in the first column."""
    text = next((ROOT / "docs").rglob(page)).read_text(encoding="utf-8")
    begin = text.index(head, text.index(after))
    lines = text[begin:].split("\n\n", 1)[0].splitlines()[2:]
    rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {first: rest for first, *rest in rows}


def code(cell: str) -> list[str]:
    """The code spans in a cell."""
    return re.findall(r"`([^`]*)`", cell)


def shown(default: object) -> str:
    if default is inspect.Parameter.empty:
        return ""
    return f'"{default}"' if isinstance(default, str) else repr(default)


def test_every_field_of_an_agent_is_listed_with_its_default():
    rows = table("agents.md", "| field |", after="`LlmAgent`, all by keyword")
    listed = {code(name)[0]: "".join(code(default)) for name, (default, _) in rows.items()}
    parameters = inspect.signature(LlmAgent.__init__).parameters
    expected = {
        name: shown(parameter.default)
        for name, parameter in parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD  # those are what a subclass declares
    }
    callbacks = {name for name in expected if name.endswith("_callback")}
    assert {name: default for name, default in expected.items() if name not in callbacks} == {
        name: default for name, default in listed.items() if name not in callbacks
    }
    assert callbacks == {code(name)[0] for name in table("agents.md", "| callback | called with |")}


def test_every_limit_of_a_run_is_listed_with_its_default():
    rows = table("agents.md", "| field |", after="`RunConfig`, all by keyword")
    expected = {field.name: shown(getattr(RunConfig(), field.name)) for field in dataclasses.fields(RunConfig)}
    assert expected == {code(name)[0]: code(default)[0] for name, (default, _) in rows.items()}


def test_every_code_that_a_run_may_end_with_is_listed():
    listed = {each for name in table("agents.md", "| `error_code` |") for each in code(name)}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/patchbay/agents").glob("*.py"))
    written = set(re.findall(r'"([A-Z]{3,}(?:_[A-Z]+)*)"', sources))
    assert {"MAX_LLM_CALLS", "AGENT_ERROR", "PARALLEL_ERROR", "MESSAGE_TOO_LONG"} <= written
    assert set() == written - listed


def test_every_topic_is_listed_with_its_data():
    rows = table("sessions.md", "| topic | when |")
    written = [
        line.strip("|").split("|") for line in (event_bus.__doc__ or "").splitlines() if line.startswith("|") and "." in line
    ]
    expected = {topic.strip(): re.findall(r"\w+(?=,|$)", data.strip().replace(" (a code)", "")) for topic, _, data in written}
    assert expected == {code(topic)[0]: code(data) for topic, (_, data) in rows.items()}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/patchbay/agents").glob("*.py"))
    assert set(expected) == set(re.findall(r'publish\(\s*"([a-z.]+)"', sources))


def test_every_method_of_a_session_service_is_listed():
    listed = {name.partition("(")[0] for row in table("sessions.md", "| method of a service |") for name in code(row)}
    assert {name for name in vars(BaseSessionService) if not name.startswith("_")} == listed
