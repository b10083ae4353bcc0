"""The images of a tool's envelope: those that are accepted, and warnings about others."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.pictures import jpeg, png
from patchbay.executor import Executor
from patchbay.tools import ToolDefinition, render_result
from patchbay.tools.envelope import ReportedError, image_size, image_type, unwrap_tool_response, with_images
from patchbay.types import Attachment, Illustrated, ToolCall


def code(data: bytes) -> str:
    return base64.b64encode(data).decode()


def warning(image: Any) -> str:
    output, taken = with_images("seen", [image])
    assert () == taken
    assert "seen" == output["result"]
    (words,) = output["_image_warnings"]
    return words


@pytest.mark.parametrize(
    ("data", "name"), [(png(640, 480), "image/png"), (jpeg(640, 480), "image/jpeg"), (jpeg(640, 480, marker=0xC2), "image/jpeg")]
)
def test_image_type_and_size_are_read_from_the_header(data, name):
    assert name == image_type(data)
    assert (640, 480) == image_size(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x89PNG\r\n\x1a\n",
        png()[:20],
        jpeg()[:10],
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xe0\0\0",
        b"\xff\xd8" + b"\xff" * 100,
    ],
)
def test_half_a_header_has_no_size(data):
    assert image_size(data) is None


@given(st.binary(max_size=60))
def test_any_bytes_after_an_image_signature_are_read_without_an_error(data):
    for begin in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xc0"):
        size = image_size(begin + data)
        assert size is None or all(number >= 0 for number in size)


def test_images_become_attachments_and_the_output_is_unchanged():
    value = unwrap_tool_response(
        {"output": {"city": "Oslo"}, "images": [{"data": code(png()), "mime_type": "image/png"}, code(jpeg())]}
    )
    assert isinstance(value, Illustrated)
    assert {"city": "Oslo"} == value.output
    assert '{"city": "Oslo"}' == render_result(value)
    assert (Attachment(png(), "image/png", "image 1"), Attachment(jpeg(), "image/jpeg", "image 2")) == value.attachments


@pytest.mark.parametrize(
    "image", [f"data:image/png;base64,{code(png())}", {"base64": code(png())}, {"image": code(png()), "mime": "IMAGE/PNG"}]
)
def test_image_is_accepted_in_any_form(image):
    assert (Attachment(png(), "image/png", "image 1"),) == with_images("", [image])[1]


def test_envelope_without_images_is_unchanged():
    assert {"is_error": False, "a": 1} == unwrap_tool_response({"is_error": False, "a": 1, "images": []})
    assert "x" == unwrap_tool_response({"output": "x", "images": []})
    with pytest.raises(ReportedError):
        unwrap_tool_response({"output": "x", "is_error": True, "images": [code(png())]})


def test_invalid_images_get_a_warning():
    big = png(3841, 2160)
    assert 1 == len(with_images("", [code(png(3840, 2160))])[1])
    assert "image 1: it is 3841x2160 pixels, and may be 3840x2160" == warning(code(big))
    assert "image 1: it is said to be image/jpeg, and is image/png" == warning({"data": code(png()), "mime_type": "image/jpeg"})
    assert "image 1: it is neither JPEG nor PNG" == warning(code(b"GIF89a" + bytes(20)))
    assert "image 1: it is not valid base64" == warning("no base64 %%%")
    assert "image 1: its base64 is larger than 2 MiB" == warning("A" * (2 * 1024 * 1024 + 1))
    assert "image 1: it does not say how large it is" == warning(code(png()[:20]))
    assert "image 1: it does not say how large it is" == warning(code(png(0, 5)))
    for nothing in (None, 5, {}, {"data": 5}, []):
        assert "image 1: it must be" in warning(nothing)
    assert "image 1: its data URL must be base64" == warning("data:image/png,abc")
    assert ({"result": 1, "_image_warnings": ["images must be a list"]}, ()) == with_images(1, "image")


def test_only_the_first_two_are_taken():
    output, taken = with_images({"n": 3}, [code(png())] * 3)
    assert 2 == len(taken)
    assert {"n": 3, "_image_warnings": ["3 images: only the first 2 are taken"]} == output


def test_vision_prompt_is_passed_on_and_truncated():
    output, taken = with_images("seen", [{"data": code(png()), "vision_prompt": "x" * 3000}])
    assert 1 == len(taken)
    assert ["x" * 2000] == output["_vision_prompts"]
    assert ["image 1: its vision_prompt is cut at 2000 characters"] == output["_image_warnings"]


def test_in_process_handler_can_return_images():
    shot = ToolDefinition("shot", handler=lambda _: {"output": "the screen", "images": [code(png())]})
    plain = ToolDefinition("plain", handler=lambda _: {"images": ["a", "b"]})

    async def main() -> list[Any]:
        batch = (
            Executor([shot, plain]).begin_run(attachments=["image"]).start_batch([ToolCall("1", "shot"), ToolCall("2", "plain")])
        )
        return [execution async for execution in batch]

    executions = {each.call.name: each for each in asyncio.run(asyncio.wait_for(main(), 30))}
    assert "the screen\n(1 attachment: see below.)" == executions["shot"].content
    assert png() == executions["shot"].result.attachments[0].data
    assert {"images": ["a", "b"]} == executions["plain"].value
