"""Invalid limits and settings are refused at construction."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from patchbay.errors import ConfigurationError
from patchbay.realtime import ChatSession, RealtimeLimits, RealtimeSession, RealtimeSettings
from patchbay.testing import ScriptedModel

COUNTS = ["flood_calls", "max_rounds", "max_calls", "reconnects", "kept_items", "kept_chars", "waiting", "max_frame"]
SECONDS = sorted({*vars(RealtimeLimits())} - {*COUNTS})


@pytest.mark.parametrize("name", COUNTS)
def test_counts_must_be_integers(name):
    for value in (2.5, 2.0, float("inf"), float("nan"), "2", None, True, -1, [2]):
        with pytest.raises(ConfigurationError, match=f"^{name} of a realtime session must be a whole number"):
            RealtimeLimits(**{name: value})
    assert 3 == getattr(RealtimeLimits(**{name: 3}), name)


@pytest.mark.parametrize("name", SECONDS)
def test_seconds_must_be_finite(name):
    for value in (float("inf"), float("nan"), 10**400, "2", True, -0.5, [2]):
        with pytest.raises(ConfigurationError, match=f"^{name} of a realtime session must be a number of seconds"):
            RealtimeLimits(**{name: value})
    assert (3, 0.5) == tuple(getattr(RealtimeLimits(**{name: value}), name) for value in (3, 0.5))


@pytest.mark.parametrize("name", [*COUNTS, *SECONDS])
def test_zero_is_a_limit_only_where_documented(name):
    if name in ("reconnects", "kept_items", "grace"):
        assert 0 == getattr(RealtimeLimits(**{name: 0}), name)
    else:
        with pytest.raises(ConfigurationError, match="more than 0"):
            RealtimeLimits(**{name: 0})


def test_only_the_slow_tool_timeout_can_be_unlimited():
    assert None is RealtimeLimits(slow_after=None).slow_after
    with pytest.raises(ConfigurationError):
        RealtimeLimits(done=None)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in ("model", "provider", "instructions") for value in (None, 3, b"m", ["m"])],
        *[(name, value) for name in ("url", "api_key", "voice") for value in (3, b"m", ["m"])],
        *[(name, value) for name in ("transcribe", "detect_turns") for value in (None, 1, "yes")],
        *[("extra", value) for value in (None, [], "a", {"a": object()}, {"a": [{1, object()}]}, {("a", "b"): 1})],
        *[("limits", value) for value in (None, {}, {"done": 3}, 3)],
        ("output", None),
        ("model", " "),
        ("url", "http://127.0.0.1/"),
    ],
)
def test_setting_of_the_wrong_type_is_refused_by_name_without_keys(name, value):
    for made in (lambda fields: RealtimeSettings(**fields), lambda fields: RealtimeSession(fields.pop("model"), **fields)):
        with pytest.raises(
            ConfigurationError, match=rf"^(The URL|A realtime session needs|({name}|settings) of a realtime session)"
        ) as caught:
            made({"model": "m", name: value})
        assert "b'm'" not in str(caught.value)


def test_recursive_extra_is_refused():
    extra: dict[str, object] = {}
    extra["a"] = extra
    with pytest.raises(ConfigurationError, match=r"^extra of a realtime session"):
        RealtimeSettings(model="m", extra=extra)


def test_extra_is_any_mapping_of_json():
    extra = MappingProxyType({"a": [1, 2.5, None, True, {"b": "\ud83d"}]})
    assert extra == RealtimeSettings(model="m", extra=extra).extra


def test_the_limits_of_an_offline_session_are_limits():
    with pytest.raises(ConfigurationError, match=r"^limits of a realtime session must be RealtimeLimits, not dict"):
        ChatSession(ScriptedModel([]), limits={"waiting": 3})
