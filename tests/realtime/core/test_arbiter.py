"""The response scheduler: one response at a time, and every wait ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.realtime.response_state import ResponseScheduler

SECONDS = {"created": 5.0, "done": 60.0, "cancel": 3.0}
UNTIMED = {"request", "defer_to_server", "reclaim", "ended", "rejected"}


def play(course: str) -> None:
    """Play the steps of a course: ``step``, ``step=what it returns``, ``step@seconds``, or ``attribute=its value``.

    ``accept`` requests a response and accepts a pending one. Steps without a time follow a tenth of a second after the one before.
    """
    made, now = ResponseScheduler(**SECONDS), 0.0
    for step in course.split():
        call, _, expected = step.partition("=")
        name, _, at = call.partition("@")
        now = float(at) if at else now + 0.1
        if name == "accept":
            value = made.request(accept_pending=True)
        elif not callable(value := getattr(made, name)):
            pass
        else:
            value = value() if name in UNTIMED else value(now)
        assert expected in ("", str(value)), (step, value)


REQUESTED = "request start_next@0=True "


@pytest.mark.parametrize(
    "course",
    [
        pytest.param(REQUESTED + "start_next=False request wanted=False", id="a request is sent at once and only once"),
        pytest.param(REQUESTED + "began request start_next=False ended start_next=True", id="it waits for the one under way"),
        pytest.param(
            REQUESTED + "busy state=in_progress wanted=True start_next=False ended start_next=True",
            id="a busy error defers it until the response ends",
        ),
        pytest.param(REQUESTED + "began busy ended start_next=True", id="busy after a misattributed start requests again"),
        pytest.param(REQUESTED + "cancel=False began=True state=cancelling", id="an unwanted one is cancelled when it begins"),
        pytest.param(
            REQUESTED + "cancel request began=True ended start_next=True",
            id="input during an unwanted pending response is answered after it",
        ),
        pytest.param(
            REQUESTED + "cancel accept began=False state=in_progress wanted=False", id="a pending response is reused if accepted"
        ),
        pytest.param(
            REQUESTED + "cancel request defer_to_server began=False wanted=False state=in_progress",
            id="a server's own response is not cancelled instead",
        ),
        pytest.param(
            REQUESTED + "began request defer_to_server defer_to_server ended start_next=False is_response_owed=True"
            " reclaim start_next=True start_next=False",
            id="a deferred request is sent again if the server begins nothing",
        ),
        pytest.param(
            "request defer_to_server began ended reclaim is_response_owed=False start_next=False",
            id="a reclaimed response is dropped if one began",
        ),
        pytest.param(
            "request defer_to_server cancel ended reclaim is_response_owed=False start_next=False",
            id="a reclaimed response is dropped if it was cancelled",
        ),
        pytest.param(REQUESTED + "rejected=True state=free start_next=False rejected=False", id="a refused request is dropped"),
        pytest.param(
            REQUESTED + "expire@4.9=None expire@5=created state=free", id="a response that does not begin is not waited for"
        ),
        pytest.param(
            REQUESTED + "began@1 touch@30 expire@89.9=None expire@90=done expire@92.9=None expire@93=cancel state=free",
            id="a silent response is cancelled and then abandoned",
        ),
        pytest.param(
            "discard_next state=discarding is_response_owed=False began=True state=cancelling",
            id="a discarded response is cancelled when it begins",
        ),
        pytest.param(
            "discard_next@0 expire@2=None expire@3.5=cancel state=free", id="a discarded response that never begins is no failure"
        ),
        pytest.param(
            REQUESTED + "discard_next began=False state=in_progress discard_next request ended discard_next start_next=True",
            id="a wanted or running response is not discarded",
        ),
        pytest.param("discard_next cancel=False accept start_next=True began=False", id="a requested response is not discarded"),
        pytest.param("discard_next defer_to_server state=free began=False", id="a server's response to speech is not discarded"),
    ],
)
def test_responses_are_requested_one_at_a_time(course):
    play(course)


STEPS = ["want", "next", "began", "touch", "ended", "busy", "rejected", "cancel", "ended_by_late_cancel", "later"]


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_no_request_is_sent_while_one_is_pending_or_under_way(steps):
    made, now, open_responses = ResponseScheduler(**SECONDS), 0.0, 0
    for step in steps:
        if step == "next":
            if made.start_next(now):
                assert 0 == open_responses
                open_responses = 1
        elif step == "began":
            made.began(now)
            open_responses = 1
        elif step in ("ended", "rejected"):
            getattr(made, step)()
        elif step == "want":
            made.request()
        elif step == "later":
            now += 100.0
            made.expire(now)
        elif step != "ended_by_late_cancel" or made.state == "in_progress":
            getattr(made, step)(now)
        open_responses = 0 if made.state == "free" else open_responses
        assert (made.state == "free") == (made.deadline is None)
