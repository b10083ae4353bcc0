"""Names of event kinds in a configuration."""

from __future__ import annotations

import pytest

from patchbay.errors import ConfigurationError
from patchbay.hooks.process.protocol import parse_kinds


def test_kinds_have_full_and_short_names():
    assert {"agent.turn.start", "agent.tool.exec_end", "mcp.tool.call.start"} == parse_kinds(
        ["turn_start", "agent.tool.exec_end", "mcp.tool.call.start"], "observe"
    )
    assert {"agent.tool.exec_start", "agent.subturn.result_delivered", "agent.error", "agent.follow_up.queued"} == parse_kinds(
        ["tool_exec_start", "subturn_result_delivered", "error", "follow_up_queued"], "observe"
    )


@pytest.mark.parametrize("names", [["*"], ["all"], [""], ["turn_start", "*"], ["*", "nonsense"]])
def test_wildcard_kinds_mean_all_and_end_the_list(names):
    assert parse_kinds(names, "observe") is None


@pytest.mark.parametrize("names", [["nonsense"], ["nonsense", "*"], ["turn.start"], ["Turn_Start"]])
def test_unknown_kind_is_refused(names):
    with pytest.raises(ConfigurationError, match=f'observe names the event "{names[0]}"'):
        parse_kinds(names, "observe")
