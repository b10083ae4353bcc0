"""Files of results: attachments for a model, refs for the user, or a note if they are not available."""

from __future__ import annotations

import base64
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from media.pictures import PDF, SVG, WAV, png
from media.turns import play
from patchbay.executor import Executor
from patchbay.hooks import HookManager, HookScope, Modify, Respond
from patchbay.loop import FinalEvent, UserOutputEvent
from patchbay.media import FORGET, MediaMeta, MediaStore
from patchbay.media import attachments as attachments_module
from patchbay.media.attachments import insert_tags
from patchbay.tools.output import ToolOutput
from patchbay.types import Attachment, ToolCall

IMAGE = png(filler=4000)
URL = f"data:image/png;base64,{base64.b64encode(IMAGE).decode()}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MediaStore]:
    with MediaStore(tmp_path / "store") as made:
        yield made


class Played:
    """A turn in which ``tool`` was called once: what the model was shown, and what the user was."""

    def __init__(self, value: Any, *, attachments: Any = ("image", "file", "audio"), hook: Any = None, **options: Any) -> None:
        async def look() -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        script = [[ToolCall("1", "look")], "done"]
        events, self.model = play(script, look, hook=hook, attachments=attachments, **options)
        self.outputs = [event for event in events if isinstance(event, UserOutputEvent)]
        (self.final,) = (event for event in events if isinstance(event, FinalEvent))
        (self.execution,) = self.final.tool_executions
        self.content = self.execution.content
        self.parts = [
            part
            for message in self.final.messages[2:]
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] != "text"
        ]
        json.dumps(self.final.messages)


def image_part(data: bytes, media_type: str = "image/png") -> dict[str, Any]:
    return Attachment(data, media_type).to_openai()


# To the model


def test_image_ref_is_attached_for_capable_models_and_a_tag_for_others(store):
    ref = store.put(IMAGE)
    seen = Played(ToolOutput("a cat", media=(ref,)), media=store)
    assert f"a cat [image:{ref}]\n(1 attachment: see below.)" == seen.content
    assert [image_part(IMAGE)] == seen.parts
    outcome = Played(ToolOutput("a cat", media=(ref,)), media=store, attachments=())
    assert f"a cat [image:{ref}]\n(You are not shown attachments of the kind image.)" == outcome.content
    assert [] == outcome.parts
    assert [] == seen.outputs == outcome.outputs


def test_result_includes_paths_of_unowned_files(store, tmp_path):
    path = tmp_path / "cat.png"
    path.write_bytes(IMAGE)
    ref = store.store(path, MediaMeta(cleanup=FORGET))
    seen = Played(ToolOutput("a cat", media=(ref,), artifact_tags=("[file:/invented]",)), media=store)
    assert f"a cat\nLocal artifact paths: [image:{path}]\n" in seen.content
    assert "invented" not in seen.content


def test_file_fills_its_placeholder(store):
    image, sound, file = (store.lookup(store.put(data)) for data in (IMAGE, WAV, PDF))
    assert f"left {image.tag} right" == insert_tags("left [image] right", [image])[0]
    assert f"{image.tag} and [image]" == insert_tags("[image: a cat] and [image]", [image])[0]
    assert f"[image] {sound.tag}" == insert_tags("[image]", [sound])[0]
    assert f'{file.tag}\n{{"a": 1}}' == insert_tags('{"a": 1}', [file])[0]
    assert image.tag == insert_tags("", [image])[0]
    both, rest = insert_tags("[image] [image]", [image, image])
    assert (f"{image.tag} {image.tag}", []) == (both, rest)


@pytest.mark.parametrize(
    ("data", "declared", "part"),
    [
        (PDF, "application/pdf", "file"),
        (WAV, "audio/wav", "input_audio"),
        (SVG, "image/svg+xml", "file"),
        (b"BM" + bytes(50), "image/bmp", "file"),
        (b"no image at all", "image/png", "file"),
    ],
)
def test_media_is_sent_by_its_real_kind(store, data, declared, part):
    ref = store.put(data, MediaMeta("a", declared))
    assert [part] == [each["type"] for each in Played(ToolOutput("x", media=(ref,)), media=store).parts]


def test_files_beyond_the_total_limit_are_noted_only(store, monkeypatch):
    monkeypatch.setattr(attachments_module, "MAX_ATTACHED", 2 * len(IMAGE))
    refs = tuple(store.put(IMAGE) for _ in range(3))
    seen = Played(ToolOutput("cats", media=refs), media=store)
    assert 2 == len(seen.parts)
    assert f"({refs[2]} is not shown: a result's files may have" in seen.content


def test_unavailable_media_is_left_out_with_a_note_for_the_model(store, caplog):
    ref = store.put(IMAGE)
    gone = store.put(b"gone")
    store.resolve(gone).unlink()
    with caplog.at_level(logging.WARNING, "patchbay.media.attachments"):
        seen = Played(ToolOutput("a cat", media=("media://abc123", ref, "/etc/passwd", gone)), media=store)
    assert [image_part(IMAGE)] == seen.parts
    assert (ref,) == seen.execution.output.media
    assert not seen.execution.is_error
    for why in ("unknown ref: media://abc123", "/etc/passwd is in no folder that files are taken from", "there is no file"):
        assert why in seen.content
    assert "are left out" in caplog.text


def test_hook_answer_is_shown_like_a_tool_result(store):
    class Painter:
        async def before_tool(self, call):
            return Respond({"for_llm": "painted", "media": [URL]})

    seen = Played("never", hook=Painter(), media=store)
    assert [image_part(IMAGE)] == seen.parts
    assert seen.content.startswith("painted [image:media://")


def test_file_left_by_a_hook_in_the_media_dir_is_shown(store):
    class Painter:
        async def after_tool(self, result):
            (store.media_dir / "cat.png").write_bytes(IMAGE)
            return Modify({"result": {"media": [str(store.media_dir / "cat.png")]}})

    seen = Played("painted", hook=Painter(), media=store)
    assert [image_part(IMAGE)] == seen.parts
    assert f"Local artifact paths: [image:{store.media_dir / 'cat.png'}]" in seen.content


# To the user


def test_files_of_an_answer_to_the_user_are_refs_that_can_be_opened_and_the_turn_ends(store):
    answer = ToolOutput("drawn", for_user="Here it is.", media=(URL,), response_handled=True)
    seen = Played(answer, media=store)
    (output,) = seen.outputs
    assert ("Here it is.", True) == (output.text, output.handled)
    with store.open(output.media[0]) as file:
        assert IMAGE == file.read()
    assert URL == store.data_url(output.media[0])
    assert [] == seen.parts
    assert "(The user has been given this output." in seen.content
    assert 1 == len(seen.model.requests)


def test_images_that_a_tool_of_this_program_returns_for_the_user_are_refs_too(store):
    seen = Played(
        ToolOutput("drawn", attachments=(Attachment(IMAGE, "image/png", "cat.png"),), response_handled=True), media=store
    )
    (output,) = seen.outputs
    assert "cat.png" == store.lookup(output.media[0]).filename
    assert [] == seen.parts


@pytest.mark.parametrize("media", [("media://abc123",), (URL, "media://abc123"), ("/etc/passwd",)])
def test_answer_with_missing_files_is_an_error_result(store, media, caplog):
    seen = Played(ToolOutput("drawn", for_user="Here it is.", media=media, response_handled=True), media=store)
    assert seen.execution.is_error
    assert seen.content.startswith("failed to deliver attachment: ")
    assert "has been given" not in seen.content
    assert [((), False)] == [(output.media, output.handled) for output in seen.outputs]
    assert 2 == len(seen.model.requests)
    assert "done" == seen.final.content
    assert "is not delivered" in caplog.text


def test_files_that_exceed_the_store_together_are_not_delivered(tmp_path):
    with MediaStore(tmp_path / "store", max_bytes=len(IMAGE) * 3 // 2) as store:
        seen = Played(ToolOutput("drawn", media=(URL, URL), response_handled=True), media=store)
        both = ToolOutput("drawn", media=(URL,), attachments=(Attachment(IMAGE, "image/png"),), response_handled=True)
        other = Played(both, media=store)
        outcome = Played(ToolOutput("drawn", media=(URL, URL)), media=store)
    for each in (seen, other):
        assert each.content.startswith("failed to deliver attachment: media store: unknown ref: media://")
        assert [] == each.outputs
    assert 1 == len(outcome.parts)
    assert "Left out, not available: media store: unknown ref: media://" in outcome.content


# Base64 in texts


@pytest.mark.parametrize("value", [f"look: {URL}", {"look": URL}, ["look", URL], IMAGE, ToolOutput(f"look {URL}")])
def test_base64_in_tool_results_becomes_a_file(store, value):
    seen = Played(value, media=store)
    assert len(seen.content) < 200
    assert "[image:media://" in seen.content
    assert [image_part(IMAGE)] == seen.parts
    media = store.lookup(re.search(r"media://[^\]\s:]+", seen.content)[0])
    assert "tool:inline:look" == media.scope
    assert "look" == media.meta.source
    outcome = Played(value, media=store, attachments=())
    assert "(You are not shown attachments of the kind image.)" in outcome.content
    assert [] == outcome.parts


@pytest.mark.parametrize("message", [f"look {URL}", {"for_llm": f"look {URL}"}, ToolOutput(f"look {URL}")])
def test_base64_in_hook_answers_becomes_a_file(store, message):
    class Painter:
        async def before_tool(self, call):
            return Respond(message)

    seen = Played("never", hook=Painter(), media=store)
    assert seen.content.startswith("look [image:media://")
    assert [image_part(IMAGE)] == seen.parts


def test_json_stays_valid_without_its_base64(store):
    seen = Played({"image": URL, "n": 1}, media=store, attachments=())
    read = json.loads(seen.content.partition("\n")[0])
    assert IMAGE == store.read(read["image"].removeprefix("[image:").removesuffix("]"))
    assert 1 == read["n"]


def test_base64_is_extracted_before_truncation(store):
    seen = Played("word " * 300 + URL + " word" * 300, media=store, max_result_chars=4000)
    assert "left out here" not in seen.content
    assert [image_part(IMAGE)] == seen.parts


def test_base64_in_errors_is_not_shown(store):
    seen = Played(ValueError(f"could not read {URL}"), media=store)
    assert f"could not read [image/png: {len(IMAGE)} bytes of base64 are left out]" in seen.content
    outcome = Played(ToolOutput(f"it looked so: {URL}", is_error=True), media=store)
    assert outcome.execution.is_error
    assert "it looked so: [image:media://" in outcome.content
    assert len(outcome.content) < 200


def test_full_store_drops_the_file_and_keeps_the_result(tmp_path):
    with MediaStore(tmp_path / "store", max_bytes=100) as store:
        seen = Played(f"look: {URL}", media=store)
    assert f"look: [image/png: {len(IMAGE)} bytes of base64 are left out]" == seen.content


def test_many_pieces_of_base64_are_stored_up_to_a_bound(store):
    code = base64.b64encode(bytes(range(256))).decode()
    seen = Played(" ".join([f"data:a/b;base64,{code}"] * 40), media=store, attachments=())
    assert 32 == store.count
    assert 8 == seen.content.count("[a/b: 256 bytes of base64 are left out]")
    seen = Played(ToolOutput("x", media=("data:,a",) * 37), media=store)
    assert 32 == len(seen.execution.output.media)
    assert "37 files are too many" in seen.content


@pytest.mark.parametrize("value", ["sunny", {"a": 1}, "x" * 3000, None, [1, "data:image/png;base64,AAAA"]])
def test_ordinary_results_touch_no_store(value):
    class Untouched:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    seen = Played(value, media=Untouched())
    assert not seen.execution.is_error


async def test_files_belong_to_the_session_of_their_turn(store):
    class Idle:
        async def before_tool(self, call):
            return None

    async def look() -> str:
        return URL

    manager = HookManager()
    manager.mount("idle", Idle())
    run = Executor([look], hooks=manager, media=store).begin_run(scope=HookScope(session_key="s1", turn_id="t1"))
    batch = run.start_batch([ToolCall("1", "look")])
    [content] = [execution.content async for execution in batch]
    await batch.stop()
    assert "tool:inline:look:s1:t1" == store.lookup(re.search(r"media://[^\]]+", content)[0]).scope
    assert [1, 0] == [store.release_session("s1"), store.count]
