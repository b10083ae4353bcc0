"""Helpers of the dialect tests: dialects by name, checks by the vendors' SDKs, calls in events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from openai.types.realtime import RealtimeClientEventParam
from pydantic import TypeAdapter

from patchbay.realtime import RealtimeSettings
from patchbay.realtime.providers.base import Dialect
from patchbay.realtime.providers.registry import dialect_for
from patchbay.realtime.server_events import CallDelta, ServerEvent
from patchbay.types import ToolSpec

EVENTFUL = ("openai", "qwen", "glm", "stepfun")
ALL = (*EVENTFUL, "gemini")

WEATHER = ToolSpec(
    name="get_weather",
    description="Weather in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CLOCK = ToolSpec(name="get_time", description="The time.", parameters={"type": "object", "properties": {}})

_CLIENT_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeClientEventParam)


def dialect(provider: str, **settings: Any) -> Dialect:
    """A new dialect of the provider."""
    whole = RealtimeSettings(**{"model": f"{provider}/voice-1", **settings})
    return dialect_for(whole)(whole)


def shaped(of: Dialect, *specs: ToolSpec) -> list[dict[str, Any]]:
    """Tools in the dialect's wire format."""
    outcome = [of.tools.express(spec) for spec in specs]
    return [of.tools.shape(spec) for spec in outcome if isinstance(spec, ToolSpec)]


def without_id(frame: Mapping[str, Any]) -> dict[str, Any]:
    """A frame without our event id."""
    return {name: value for name, value in frame.items() if name != "event_id"}


def assert_openai_takes(frame: Mapping[str, Any]) -> None:
    """Check that the SDK's types accept every member of the frame."""
    assert dict(frame) == _made(_CLIENT_EVENT.validate_python(frame))


def _made(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _made(member) for name, member in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_made(member) for member in value]
    return value


def event(kind: str, **members: Any) -> dict[str, Any]:
    """A server's event."""
    return {"type": kind, "event_id": "event_1", **members}


def read(of: Dialect, *frames: Any) -> list[ServerEvent]:
    """All events in frames."""
    return [news for frame in frames for news in of.read(frame)]


def joined(news: Iterable[ServerEvent]) -> dict[str, tuple[str, str, str]]:
    """The calls in events, by key: id, name, arguments. First values count, and deltas before complete arguments."""
    calls: dict[str, dict[str, str]] = {}
    for piece in news:
        if isinstance(piece, CallDelta):
            call = calls.setdefault(piece.key, {"id": "", "name": "", "pieces": "", "whole": ""})
            call["id"] = call["id"] or piece.call_id
            call["name"] = call["name"] or piece.name
            call["pieces"] += piece.delta
            call["whole"] = call["whole"] or (piece.arguments or "")
    return {key: (call["id"], call["name"], call["pieces"] or call["whole"]) for key, call in calls.items()}
