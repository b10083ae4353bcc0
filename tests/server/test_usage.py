"""What requests and calls come to is counted by the minute, for a day, within bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from patchbay._redaction import Redactor
from patchbay.hooks import Meta
from patchbay.hooks.events import CallRecord
from patchbay.models.attempt import Attempt
from patchbay.models.options import TextOptions
from patchbay.server import usage as usage_module
from patchbay.server.turns import Turn, TurnStore
from patchbay.server.usage import BOUNDS, MAX_MODELS, MAX_TOOLS, Tally, UsageCounters

START = 1_000_000 * 60.0
"""The begin of a minute."""


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def usage(clock: Clock) -> UsageCounters:
    return UsageCounters(clock)


def ended(clock: Clock, *attempts: Attempt, model: str = "m", seconds: float = 1.0, **fields: Any) -> Turn:
    turn = TurnStore().begin("t", "chat", b"{}", Redactor())
    turn.model, turn.seconds, turn.status, turn.ended, turn.attempts = model, seconds, 200, clock.now, attempts
    for name, value in fields.items():
        setattr(turn, name, value)
    return turn


def attempt(**fields: Any) -> Attempt:
    return Attempt(b"", b"", 0.0, **fields)


def settled(tool: str, *, code: str = "", seconds: float = 0.1) -> CallRecord:
    meta = Meta(agent_id="ann", turn_id="t")
    return CallRecord(START, meta, {}, "c", tool, "", "", (), "", bool(code), code, 0, seconds)


def the(rows: list[dict[str, Any]]) -> dict[str, Any]:
    [row] = rows
    return row


def test_the_points_of_an_hour_are_its_minutes_and_the_last_is_now(usage: UsageCounters, clock: Clock) -> None:
    for minutes, number in ((0, 1), (2, 3), (59, 2), (60, 4)):
        clock.now = START + 60 * minutes + 30
        for _ in range(number):
            usage.add_turn(ended(clock, attempt(counts=(10, 2, 5))))
    view = usage.view("hour")
    row = the(view["models"])
    assert (60, 60, START + 60) == (view["points"], view["step"], view["begin"])
    assert [0, 3, *[0] * 56, 2, 4] == row["series"]["count"]
    assert (9, 90, 18, 45) == tuple(
        row["total"][name] for name in ("count", "prompt_tokens", "completion_tokens", "cached_tokens")
    )
    assert 10 == the(usage.view("day")["models"])["total"]["count"]


def test_the_points_of_a_day_are_quarters_of_an_hour_and_older_minutes_are_dropped(usage: UsageCounters, clock: Clock) -> None:
    for hours in (0, 1, 20, 23):
        clock.now = START + hours * 3600
        usage.add_turn(ended(clock, attempt()))
    clock.now = START + 24 * 3600 + 60
    view = usage.view("day")
    counts = the(view["models"])["series"]["count"]
    assert (96, 900, 3) == (view["points"], view["step"], sum(counts))
    assert 900 * 96 == clock.now // 900 * 900 + 900 - view["begin"]
    clock.now += 48 * 3600
    assert [] == usage.view("day")["models"]
    assert 4 == sum(tally.count for tally in usage.requests.values())


def test_a_clock_that_is_set_back_loses_no_request(usage: UsageCounters, clock: Clock) -> None:
    usage.add_turn(ended(clock, attempt()))
    clock.now -= 7200
    usage.add_turn(ended(clock, attempt()))
    assert 2 == the(usage.view("hour")["models"])["total"]["count"]


@pytest.mark.parametrize(
    ("status", "error", "outcome"),
    [(200, "", "ok"), (404, "not_found: x", "4xx"), (502, "upstream_error: x", "5xx"), (200, "upstream_error: x", "broken")],
)
def test_the_outcome_is_that_of_status_and_error(
    usage: UsageCounters, clock: Clock, status: int, error: str, outcome: str
) -> None:
    usage.add_turn(ended(clock, attempt(mode="native"), status=status, error=error))
    assert [("m", "chat", outcome, "native", "", "")] == list(usage.requests)


def test_requests_that_failed_are_counted_as_errors_also_before_they_are_read(usage: UsageCounters, clock: Clock) -> None:
    usage.add_turn(ended(clock, status=502, error="upstream_error: x"))
    usage.add_refusal("chat", 401, 0.001)
    rows = {row["name"]: row["total"]["errors"] for row in usage.view("hour")["models"]}
    assert {"m": 1, "unknown": 1} == rows


def test_attempts_of_a_turn_are_rounds_and_superseded_answers_have_no_calls(usage: UsageCounters, clock: Clock) -> None:
    call = (("c1", "weather", "{}"),)
    usage.add_turn(
        ended(
            clock,
            attempt(mode="native", calls=call, reason="a call that did not fit"),
            attempt(mode="native", calls=call),
            attempt(mode="text", calls=call, is_superseded=True),
        )
    )
    tally = next(iter(usage.requests.values()))
    assert (3, 1, 1) == (tally.rounds, tally.again, tally.calls)
    assert [("weather", "", "passed")] == list(usage.calls)


def test_calls_that_the_server_ran_are_not_passed_to_the_client_too(usage: UsageCounters, clock: Clock) -> None:
    usage.add_call(settled("weather"))
    usage.add_call(settled("weather", code="tool_timeout", seconds=30.0))
    last = attempt(mode="native", calls=(("c", "weather", "{}"), ("d", "shell", "{}")))
    usage.add_turn(ended(clock, last, settled=[settled("weather")], agent="ann"))
    counts = {key: tally.count for key, tally in usage.calls.items()}
    assert {("weather", "ann", "ok"): 1, ("weather", "ann", "tool_timeout"): 1, ("shell", "ann", "passed"): 1} == counts
    rows = {row["name"]: row["total"] for row in usage.view("hour")["tools"]}
    assert (2, 1) == (rows["weather"]["count"], rows["weather"]["errors"])
    assert 10.0 < rows["weather"]["p95"] <= 30.0
    assert None is rows["shell"]["p50"]


@pytest.mark.parametrize(
    ("model", "text", "expected"),
    [
        ("m", "```tool_call\n{}\n```", "fenced"),
        ("qwen3", 'So be it. <tool_call>\n{"name": "x"}\n</tool_call>', "hermes"),
        ("m", "<|tool_calls_section_begin|><|tool_call_begin|>functions.x:0", "kimi_k2"),
        ("qwen3", '{"name": "x"}', "hermes"),
    ],
)
def test_the_format_is_that_of_the_marker_in_the_text(
    usage: UsageCounters, clock: Clock, model: str, text: str, expected: str
) -> None:
    for _ in range(2):  # the second time it is remembered
        last = attempt(mode="text", text=text, calls=(("c", "x", "{}"),), options=TextOptions(), constraint="grammar")
        usage.add_turn(ended(clock, last, model=model))
    assert [(model, "chat", "ok", "text", expected, "grammar")] == list(usage.requests)


def test_names_are_bounded_in_number_and_length_and_have_no_secrets(usage: UsageCounters, clock: Clock) -> None:
    names = ["m" * 200, "sk-" + "a1B2" * 12, "two\nlines\x1b[2J", *(f"model {number}" for number in range(2 * MAX_MODELS))]
    for name in names:
        usage.add_turn(ended(clock, attempt(), model=name))
        usage.add_call(settled(name))
    for number in range(2 * MAX_TOOLS):
        usage.add_call(settled(f"tool {number}"))
    models, tools = {key[0] for key in usage.requests}, {key[0] for key in usage.calls}
    assert (MAX_MODELS + 1, MAX_TOOLS + 1) == (len(models), len(tools))
    assert {"other", "[redacted]"} <= models & tools
    assert all(len(name) <= 100 and name.isprintable() for name in models | tools)
    assert len(names) == sum(tally.count for tally in usage.requests.values())


def test_the_oldest_minutes_are_dropped_where_there_are_too_many_rows(
    usage: UsageCounters, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_module, "MAX_ROWS", 10)
    for minute, name in itertools.product(range(20), ("a", "b")):
        clock.now = START + 60 * minute
        usage.add_turn(ended(clock, attempt(), model=name))
    assert {"a": 6, "b": 6} == {row["name"]: row["total"]["count"] for row in usage.view("hour")["models"]}


def test_quantiles_are_interpolated_within_their_bucket() -> None:
    tally = Tally()
    assert None is tally.quantile(0.5)
    for _ in range(100):
        tally.add_duration(1.0)  # from 0.5 to 1 second
    assert (0.75, 0.975) == (tally.quantile(0.5), tally.quantile(0.95))


@pytest.mark.parametrize("longest", [0.003, 60.1, BOUNDS[-1], 4000.0])
def test_no_quantile_is_longer_than_the_longest(longest: float) -> None:
    one, other, total = Tally(), Tally(), Tally()
    one.add_duration(longest)
    other.add_duration(0.001)
    for tally in (one, other):
        total.add(tally)
    assert longest == total.quantile(1.0)
    assert longest >= one.quantile(0.95) > other.quantile(1.0)
