"""Cached messages of past turns always equal those computed from the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from patchbay.agents import Blob, Event, EventActions, Part
from patchbay.agents.convert import to_messages, without_old_files
from patchbay.agents.sessions.log import EventLog, record
from patchbay.agents.view import PastTurns, model_contents
from patchbay.tools.output import introduction

from .event_builders import call_event, response_event, text_event

IDS = st.sampled_from(["", "0", "1", "2"])
BRANCHES = st.sampled_from([None, None, None, "p.a", "p.b"])


def with_file(call_id: str) -> Event:
    event = response_event(call_id)
    event.content.parts += [Part(introduction(1, call_id)), Part(inline_data=Blob("image/png", b"png"))]
    return event


EVENTS = (
    st.builds(lambda ids, branch: call_event(*ids, branch=branch), st.lists(IDS, min_size=1, max_size=2), BRANCHES)
    | st.builds(lambda ids, branch: response_event(*ids, branch=branch), st.lists(IDS, min_size=1, max_size=2), BRANCHES)
    | st.builds(lambda text, branch: text_event(text, branch=branch), st.sampled_from("ab"), BRANCHES)
    | st.builds(lambda text: text_event(text, author="agent"), st.sampled_from("cd"))
    | st.builds(with_file, IDS)
    | st.builds(lambda run: text_event("x", invocation_id=run), st.sampled_from(["r1", "r2"]))
    | st.builds(lambda run: Event(author="agent", actions=EventActions(rewind_before_invocation_id=run)), st.just("r1"))
)
TURNS = st.lists(st.lists(EVENTS, max_size=4), max_size=12)


def event_log(events: list[Event]) -> EventLog:
    return EventLog([record(event).body for event in events])


def from_the_log(events: list[Event], *, limit: int | None, branch: str | None = None) -> list:
    contents = model_contents(events, limit=limit, branch=branch)
    return to_messages(without_old_files(contents), TOOLS)


TOOLS = {"look": None}


@given(TURNS, st.none() | st.integers(1, 12), BRANCHES)
def test_for_any_log_that_grows_the_messages_are_those_of_the_log(turns, limit, branch):
    past, events = PastTurns(), []
    for turn in turns:
        events += [text_event("go on"), *turn]
        assert from_the_log(events, limit=limit, branch=branch) == past.messages(
            ("s", "a", branch, limit), event_log(events), TOOLS
        )


def turns(count: int, begin: int = 0) -> list[Event]:
    return [
        event
        for number in range(begin, begin + count)
        for event in (
            text_event(f"q{number}"),
            call_event(f"c{number}"),
            response_event(f"c{number}"),
            text_event("done", author="agent"),
        )
    ]


class CountedLog(EventLog):
    """A log that counts the events that are looked at."""

    looked = 0

    def peek(self, at: int) -> Event:
        self.looked += 1
        return super().peek(at)


def events_read(past: PastTurns, events: list[Event], *, limit: int | None) -> int:
    log = CountedLog([record(event).body for event in events])
    assert from_the_log(events, limit=limit) == past.messages(("s", "a", None, limit), log, TOOLS)
    return log.looked


def test_run_reads_only_the_previous_turn_and_its_question():
    past, events = PastTurns(), [*turns(50), text_event("q50")]
    assert 201 == events_read(past, events, limit=None)
    events += [*turns(1, 50)[1:], text_event("q51")]
    assert 4 + 1 == events_read(past, events, limit=None)


def test_manual_changes_are_sent_and_not_stored():
    past, events = PastTurns(), [*turns(3), text_event("on")]
    plain = past.messages(("s", "a", None, None), event_log(events), TOOLS)
    past.messages(("s", "a", None, None), event_log(events), TOOLS)[1]["tool_calls"][0]["function"]["name"] = "other"
    log = event_log(events)
    log[0].content.parts[0].text = "changed"
    assert "changed" == past.messages(("s", "a", None, None), log, TOOLS)[0]["content"]
    assert plain == past.messages(("s", "a", None, None), event_log(events), TOOLS)


def test_another_session_under_the_same_name_is_another_one():
    past = PastTurns()
    for text in ("first", "second"):
        events = [text_event(text), *turns(2), text_event("on")]
        assert text == past.messages(("s", "a", None, None), event_log(events), TOOLS)[0]["content"]
