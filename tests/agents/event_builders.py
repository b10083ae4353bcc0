"""Builders of events."""

from __future__ import annotations

from typing import Any

from patchbay.agents import Content, Event, EventActions, FunctionCall, FunctionResponse, Part


def text_event(text: str, *, author: str = "user", **fields: Any) -> Event:
    return Event(author=author, content=Content("user" if author == "user" else "model", [Part(text)]), **fields)


def call_event(*ids: str, text: str | None = None, **fields: Any) -> Event:
    calls = [Part(function_call=FunctionCall("look", {"at": call_id}, call_id)) for call_id in ids]
    return Event(author="agent", content=Content("model", ([Part(text)] if text else []) + calls), **fields)


def response_event(*ids: str, **fields: Any) -> Event:
    parts = [Part(function_response=FunctionResponse("look", {"result": call_id}, call_id)) for call_id in ids]
    return Event(author="agent", content=Content("user", parts), **fields)


def state_event(delta: dict[str, Any], **fields: Any) -> Event:
    return Event(author="agent", actions=EventActions(delta), **fields)


def texts_of(events: Any) -> list[str]:
    return [event.content.text for event in events if event.content is not None]
