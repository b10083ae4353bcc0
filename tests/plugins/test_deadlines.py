"""The three nested deadlines of a call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from patchbay.plugins.protocol import CANCEL_GRACE, MAX_TIMEOUT, host_deadline, tool_deadline


@given(st.floats(0.001, MAX_TIMEOUT))
def test_tool_deadline_precedes_the_hosts_and_that_the_servers(timeout):
    assert 0 < tool_deadline(timeout) < host_deadline(timeout) < timeout


@given(st.floats(5, MAX_TIMEOUT))
def test_long_timeouts_leave_time_for_a_stubborn_tool(timeout):
    assert tool_deadline(timeout) + CANCEL_GRACE < host_deadline(timeout)
