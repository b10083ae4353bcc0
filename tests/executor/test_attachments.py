"""Images and files that tools return: sent to models that accept them, described to others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from patchbay.errors import ConfigurationError
from patchbay.executor import Executor
from patchbay.loop import FinalEvent, turn
from patchbay.testing.models import ScriptedModel
from patchbay.types import Attachment, ToolCall

PNG = Attachment(b"\x89PNG", "image/png", "cat.png")
PDF = Attachment(b"%PDF", "application/pdf")
WAV = Attachment(b"RIFF", "audio/wav")


def shown_messages(value: Any, *, attachments: Any = ()) -> FinalEvent:
    async def fetch() -> Any:
        return value

    async def other() -> str:
        return "other"

    async def main() -> Any:
        run = Executor([fetch, other]).begin_run(attachments=attachments)
        model = ScriptedModel([[ToolCall("1", "fetch"), ToolCall("2", "other")], "done"])
        events = [event async for event in turn(model, run, [{"role": "user", "content": "hi"}])]
        json.dumps(model.requests[1].messages)
        return events[-1]

    return asyncio.run(asyncio.wait_for(main(), 30))


def test_model_with_vision_receives_images_after_all_results():
    end = shown_messages({"title": "a cat", "picture": PNG}, attachments=["image"])
    assert ["user", "assistant", "tool", "tool", "user", "assistant"] == [message["role"] for message in end.messages]
    text = '{"title": "a cat", "picture": "cat.png (image/png, 4 bytes)"}\n(1 attachment: see below.)'
    assert text == end.messages[2]["content"] == end.tool_executions[0].content
    words, image = end.messages[4]["content"]
    assert {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}} == image
    assert "(Attachment 1 of the result of call 1. It is data that the tool returned.)" == words["text"]
    assert (PNG,) == end.tool_executions[0].result.attachments


def test_model_without_attachments_gets_a_description():
    end = shown_messages(PNG)
    assert ["user", "assistant", "tool", "tool", "assistant"] == [message["role"] for message in end.messages]
    expected = "cat.png (image/png, 4 bytes)\n(You are not shown attachments of the kind image.)"
    assert expected == end.messages[2]["content"]
    assert PNG is end.tool_executions[0].value


def test_each_media_kind_has_its_part_and_unsupported_kinds_are_left_out():
    end = shown_messages([PNG, PDF, WAV, "and words"], attachments=["file", "audio"])
    parts = [part for part in end.messages[4]["content"] if part["type"] != "text"]
    assert [
        {"type": "file", "file": {"filename": "file", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ] == parts
    assert end.messages[2]["content"].endswith("\n(2 attachments: see below. You are not shown attachments of the kind image.)")


def test_an_attachment_that_is_deeper_in_a_value_is_only_described():
    end = shown_messages({"all": {"deep": [PNG]}}, attachments=["image"])
    assert '{"all": {"deep": ["cat.png (image/png, 4 bytes)"]}}' == end.messages[2]["content"]


@pytest.mark.parametrize("kinds", ["image", ["video"], [3]])
def test_kinds_that_do_not_exist_are_refused(kinds):
    with pytest.raises(ConfigurationError, match="attachments"):
        shown_messages(PNG, attachments=kinds)


@pytest.mark.parametrize("broken", [Attachment("text", "text/plain"), Attachment(b"x", None), Attachment(b"x", "image/png", 3)])
def test_invalid_attachment_fails_its_call_and_not_the_run(broken):
    end = shown_messages(["look", broken], attachments=["image", "file"])
    assert ("stop", "done") == (end.finish_reason, end.content)
    assert [True, False] == [execution.is_error for execution in end.tool_executions]
    assert "TypeError: an attachment" in end.tool_executions[0].content


def test_invalid_attachment_name_is_sanitised():
    end = shown_messages(Attachment(b"x", "text/\ud800", "\udfff.txt"), attachments=["file"])
    json.dumps(end.messages, ensure_ascii=False).encode()
    assert 1 == len(end.tool_executions[0].result.attachments)
