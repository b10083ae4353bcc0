"""One response at a time, whatever happens, and nothing is waited for without end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from patchbay.realtime.response_state import ResponseScheduler


def arbiter() -> ResponseScheduler:
    return ResponseScheduler(created=5.0, done=60.0, cancel=3.0)


def requested() -> ResponseScheduler:
    made = arbiter()
    made.request()
    assert made.start_next(0.0)
    return made


def test_request_is_sent_at_once_and_only_once_if_nothing_is_under_way():
    made = arbiter()
    made.request()
    assert (True, False) == (made.start_next(0.0), made.start_next(0.0))
    made.request()  # what was asked for and has not begun will do
    assert not made.wanted


def test_request_waits_for_the_response_under_way():
    made = requested()
    made.began(1.0)
    made.request()
    assert not made.start_next(1.0)
    made.ended()
    assert made.start_next(2.0)


def test_busy_error_defers_the_request_until_the_response_ends():
    made = requested()
    made.busy(0.1)
    assert ("under_way", True, False) == (made.state, made.wanted, made.start_next(0.1))
    made.ended()
    assert made.start_next(0.2)


def test_busy_after_a_misattributed_start_requests_again():
    made = requested()
    made.began(0.1)
    made.busy(0.2)
    made.ended()
    assert made.start_next(0.3)


def test_unwanted_request_is_cancelled_when_its_response_begins():
    made = requested()
    assert not made.cancel(0.1)
    assert made.began(0.2)
    assert "cancelling" == made.state


def test_input_during_an_unwanted_pending_response_is_answered_after_it():
    made = requested()
    made.cancel(0.1)
    made.request()
    assert made.began(0.2)
    made.ended()
    assert made.start_next(0.3)


def test_pending_response_is_reused_if_accepted():
    made = requested()
    made.cancel(0.1)
    made.request(accept_pending=True)
    assert (False, "under_way", False) == (made.began(0.2), made.state, made.wanted)


def test_server_initiated_response_is_not_cancelled_instead():
    made = requested()
    made.cancel(0.1)
    made.request()
    made.defer_to_server()
    assert (False, False, "under_way") == (made.began(0.2), made.wanted, made.state)


def test_deferred_request_is_sent_again_if_the_server_begins_nothing():
    made = requested()
    made.began(0.1)
    made.request()
    made.defer_to_server()
    made.defer_to_server()
    made.ended()
    assert (False, True) == (made.start_next(0.2), made.is_response_owed)
    made.reclaim()
    assert (True, False) == (made.start_next(0.3), made.start_next(0.3))


def test_reclaimed_response_is_dropped_if_one_began_or_was_cancelled():
    for nothing in (lambda made: made.began(0.3), lambda made: made.cancel(0.3)):
        made = arbiter()
        made.request()
        made.defer_to_server()
        nothing(made)
        made.ended()
        made.reclaim()
        assert (False, False) == (made.is_response_owed, made.start_next(0.4))


def test_refused_request_is_dropped():
    made = requested()
    assert made.rejected()
    assert ("free", False) == (made.state, made.start_next(0.1))
    assert not made.rejected()


def test_a_response_that_does_not_begin_is_not_waited_for():
    made = requested()
    assert (None, "created") == (made.expire(4.9), made.expire(5.0))
    assert "free" == made.state


def test_silent_response_is_cancelled_and_then_abandoned():
    made = requested()
    made.began(1.0)
    made.touch(30.0)
    assert (None, "done") == (made.expire(89.9), made.expire(90.0))
    assert (None, "cancel") == (made.expire(92.9), made.expire(93.0))
    assert "free" == made.state


STEPS = ["want", "next", "began", "touch", "ended", "busy", "rejected", "cancel", "ended_by_late_cancel", "later"]


@given(st.lists(st.sampled_from(STEPS), max_size=40))
def test_no_request_is_sent_while_one_is_pending_or_under_way(steps):
    made, now, open_responses = arbiter(), 0.0, 0
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
        elif step != "ended_by_late_cancel" or made.state == "under_way":
            getattr(made, step)(now)
        open_responses = 0 if made.state == "free" else open_responses
        assert (made.state == "free") == (made.deadline is None)


def test_a_response_that_is_muted_is_cancelled_when_it_begins():
    made = arbiter()
    made.discard_next(0.0)
    assert ("muted", False) == (made.state, made.is_response_owed)
    assert (True, "cancelling") == (made.began(1.0), made.state)


def test_discarded_response_that_never_begins_is_no_failure():
    made = arbiter()
    made.discard_next(0.0)
    assert (None, "cancel", "free") == (made.expire(2.0), made.expire(3.5), made.state)


def test_wanted_or_running_response_is_not_discarded():
    made = requested()
    made.discard_next(1.0)
    assert (False, "under_way") == (made.began(1.0), made.state)
    made.discard_next(1.0)
    made.request()
    made.ended()
    made.discard_next(1.0)
    assert made.start_next(1.0)


def test_next_requested_response_is_not_discarded():
    made = arbiter()
    made.discard_next(0.0)
    assert not made.cancel(1.0)
    made.request(accept_pending=True)
    assert (True, False) == (made.start_next(1.0), made.began(2.0))


def test_server_response_to_speech_is_not_discarded():
    made = arbiter()
    made.discard_next(0.0)
    made.defer_to_server()
    assert ("free", False) == (made.state, made.began(1.0))
