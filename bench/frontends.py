"""The protocols of one proxy beside each other: the same request and answer as chat completions, Responses, Messages, generateContent.

The upstream, the load and the answers are those of the proxies' part; what differs is the path, the body and how the end is known.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import proxies
from bench.bars import Verdict
from bench.places import BUILD
from bench.programs import LITELLM, OURS, Program
from bench.proxies import PACED, REQUEST, STREAM, Outcome, Scenario
from bench.table import between, machine, markdown

PROGRAMS = (OURS, LITELLM)
OF_CHAT = 1.3
"""What a front-end may cost beside chat completions on the same proxy, at most."""
OF_LITELLM = 0.1
"""And beside LiteLLM's same front-end."""


def _as_responses(chat: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in chat["tools"]]
    return {"model": chat["model"], "input": chat["messages"], "tools": tools, "store": False, "stream": stream}


def _as_messages(chat: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    system, *messages = chat["messages"]
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in (each["function"] for each in chat["tools"])
    ]
    given = {"system": system["content"], "messages": messages, "tools": tools, "stream": stream}
    return {"model": chat["model"], "max_tokens": 1_000, **given}


def _as_contents(chat: dict[str, Any], *, stream: bool) -> dict[str, Any]:  # noqa: ARG001  (the path tells)
    system, *messages = chat["messages"]
    tools = [
        {"name": tool["name"], "description": tool["description"], "parametersJsonSchema": tool["parameters"]}
        for tool in (each["function"] for each in chat["tools"])
    ]
    return {
        "systemInstruction": {"parts": [{"text": system["content"]}]},
        "contents": [{"role": "user", "parts": [{"text": message["content"]}]} for message in messages],
        "tools": [{"functionDeclarations": tools}],
    }


@dataclass(frozen=True)
class Protocol:
    """One front-end. ``call`` and ``end`` are what an answer with a call holds, and a complete stream."""

    name: str
    path: str
    stream_path: str
    call: str
    end: str
    body: Callable[..., dict[str, Any]] | None = None


CHAT = Protocol("chat completions", REQUEST.path, REQUEST.path, REQUEST.call, REQUEST.end)
OTHERS = (
    Protocol("Responses", "/v1/responses", "/v1/responses", '"function_call"', "response.completed", _as_responses),
    Protocol("Messages", "/v1/messages", "/v1/messages", '"tool_use"', "message_stop", _as_messages),
    Protocol(
        "generateContent",
        "/v1beta/models/scripted:generateContent",
        "/v1beta/models/scripted:streamGenerateContent?alt=sse",
        '"functionCall"',
        "finishReason",
        _as_contents,
    ),
)
LOADS = (REQUEST, STREAM, PACED)


def scenario_of(load: Scenario, protocol: Protocol) -> Scenario:
    """The same load over a protocol; those of one load take turns."""
    return replace(
        load,
        name=f"{load.name} {protocol.name}",
        path=protocol.stream_path if load.stream else protocol.path,
        body=load.body if protocol.body is None else str(_body_file(load, protocol)),
        call=protocol.call,
        end=protocol.end,
        group=load.name,
    )


def measure(programs: Sequence[Program], tools: Path, effort: proxies.Effort) -> Outcome:
    """Measure these programs over every protocol; ``tools`` is the folder of ``install.load_tools``."""
    scenarios = [scenario_of(load, protocol) for load in LOADS for protocol in (CHAT, *OTHERS)]
    for load in LOADS:
        for protocol in OTHERS:
            chat = json.loads((tools / "canned" / load.body).read_text(encoding="utf-8"))
            file = _body_file(load, protocol)
            file.parent.mkdir(parents=True, exist_ok=True)
            assert protocol.body is not None
            file.write_text(json.dumps(protocol.body(chat, stream=load.stream)), encoding="utf-8")
    return proxies.measure(programs, scenarios, tools, replace(effort, slow_paced=False))


def bars(outcome: Outcome) -> Iterator[Verdict]:
    """Each front-end beside chat completions, and beside LiteLLM's."""
    for load in LOADS:
        chat = outcome.find(OURS, scenario_of(load, CHAT))
        for protocol in OTHERS:
            scenario = scenario_of(load, protocol)
            ours, theirs = outcome.find(OURS, scenario), outcome.find(LITELLM, scenario)
            what = f"{protocol.name}: {load.title}: CPU beside"
            if ours is None or chat is None:
                yield Verdict(f"{what} chat completions", f"≤ {OF_CHAT}", f"no figures of {OURS}", None)
                continue
            # Of each round by itself: its turns stand side by side, so that a busy moment is on both.
            ratio = statistics.median(each / beside for each, beside in zip(ours.cpu_us, chat.cpu_us, strict=True))
            yield Verdict(f"{what} chat completions", f"≤ {OF_CHAT}", f"{ratio:.2f}", ratio <= OF_CHAT)
            if load is PACED:
                continue
            bar = f"≤ 1/{1 / OF_LITELLM:.0f}"
            if theirs is None:
                yield Verdict(f"{what} LiteLLM", bar, f"no figures of {LITELLM}", None)
            else:
                yield Verdict(f"{what} LiteLLM", bar, f"1/{theirs.cpu / ours.cpu:.0f}", ours.cpu <= OF_LITELLM * theirs.cpu)


def table(outcome: Outcome, programs: Sequence[Program], rounds: int) -> str:
    """CPU time, a column for each protocol and a row for each load of a program."""
    rows = []
    for program in programs:
        for load in LOADS:
            found = [outcome.find(program.name, scenario_of(load, protocol)) for protocol in (CHAT, *OTHERS)]
            if any(found):
                cells = ["–" if each is None else between(each.cpu_us, each.cpu) for each in found]
                rows.append([f"{program.name} {program.version}, {load.title}: {load.unit}", *cells])
    lines = [
        "Front-ends: the same request and answer over each protocol, CPU time of the whole process tree,",
        f"median of {rounds} alternating rounds [least–most]. {machine()}.",
        "",
        markdown(["", *(protocol.name for protocol in (CHAT, *OTHERS))], rows),
    ]
    lines += [f"\n{name}: skipped, {reason}" for name, reason in outcome.skipped.items()]
    lines += [
        f"\n{figures.program}, {figures.scenario}: left out, {figures.problem}" for figures in outcome.figures if figures.problem
    ]
    return "\n".join(lines)


def _body_file(load: Scenario, protocol: Protocol) -> Path:
    return BUILD / "frontends" / f"{load.name}-{protocol.name}.json"
