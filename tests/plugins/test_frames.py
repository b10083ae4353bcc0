"""Frames: any chunks of a stream give the same messages, and invalid frames are rejected at once."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.plugins.connection import MAX_FRAME_BYTES, FrameReader, encode
from patchbay.plugins.errors import FrameError
from patchbay.plugins.protocol import (
    CancelRun,
    ConfigUpdate,
    Crash,
    LlmToolRegister,
    LlmToolState,
    Log,
    Message,
    Ping,
    Progress,
    Result,
    Start,
    StartupResult,
    Stop,
    Trigger,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Trigger, req_id=texts, entry_id=texts, args=texts, timeout=st.none() | st.floats(0, 300), run_id=texts),
    st.builds(Result, req_id=texts, success=st.booleans(), data=st.binary(max_size=300), error=st.none() | texts),
    st.builds(Progress, req_id=texts, message=st.none() | texts, data=st.none() | texts),
    st.builds(LlmToolState, name=texts, state=st.sampled_from(["pending", "active", "refused", "stale"]), reason=texts),
    st.builds(
        LlmToolRegister,
        plugin_id=texts,
        name=texts,
        description=texts,
        parameters=st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=3),
        timeout_seconds=st.just(30.0),
    ),
    st.builds(StartupResult, status=st.sampled_from(["ready", "failed"]), startup_error=st.none() | texts),
    st.builds(ConfigUpdate, req_id=texts, config=st.none() | st.dictionaries(texts, st.booleans(), max_size=2)),
    st.builds(Log, level=st.integers(0, 50), logger=texts, message=texts, created=st.just(1.5), dropped=st.integers(0, 9)),
    st.builds(Start, plugin_id=texts, entry=texts, folder=texts),
    st.builds(CancelRun, run_id=texts),
    st.builds(Crash, error=texts, traceback=texts),
    st.builds(Stop, drain=st.floats(0, 10)),
    st.just(Ping()),
)


def read_all(reader: FrameReader) -> tuple[list[object], str]:
    """Read until nothing more is to be had, and return it with the error that ended it."""
    found: list[object] = []
    try:
        while (frame := reader.read()) is not None:
            found.append(frame)
    except FrameError as error:
        return found, str(error)
    return found, ""


def fed(data: bytes, cuts: list[int], *, limit: int = MAX_FRAME_BYTES) -> tuple[list[object], str]:
    reader = FrameReader(limit=limit)
    found: list[object] = []
    last = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        reader.feed(data[last:cut])
        last = cut
        more, error = read_all(reader)
        found += more
        if error:
            return found, error
    return found, ""


@given(st.lists(messages, max_size=6), st.lists(st.integers(0), max_size=8))
def test_any_split_of_the_stream_gives_the_same_messages(sent, cuts):
    data = b"".join(encode(message) for message in sent)
    assert (sent, "") == fed(data, cuts)


@given(st.lists(messages, max_size=3), st.binary(max_size=200), st.lists(st.integers(0), max_size=8))
def test_garbage_ends_the_stream_at_the_same_place_in_any_split(sent, garbage, cuts):
    data = b"".join(encode(message) for message in sent) + garbage
    whole = fed(data, [], limit=4096)
    assert sent == whole[0][: len(sent)]
    assert whole == fed(data, cuts, limit=4096)


@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_a_stream_that_ends_within_a_message_was_cut_off(sent, data):
    stream = b"".join(encode(message) for message in sent)
    last = len(encode(sent[-1]))
    reader = FrameReader()
    reader.feed(stream[: len(stream) - data.draw(st.integers(1, last - 1))])
    assert len(sent) - 1 == len(read_all(reader)[0])
    with pytest.raises(FrameError, match="cut off"):
        reader.close()


def test_a_message_that_is_too_long_is_refused_by_its_length_alone():
    reader = FrameReader(limit=100)
    reader.feed(struct.pack(">I", 101))
    with pytest.raises(FrameError, match="101 bytes is longer than 100"):
        reader.read()


def test_failed_reader_fails_again_and_buffers_nothing():
    reader = FrameReader(limit=100)
    reader.feed(b"\xff" * 10)
    for _ in range(2):
        with pytest.raises(FrameError):
            reader.read()
        reader.feed(encode(Ping()))


def test_the_limit_may_be_raised_between_two_messages():
    long = Result(req_id="r", success=True, data=b"x" * 5000)
    reader = FrameReader(limit=100)
    reader.feed(encode(Ping()) + encode(long))
    assert Ping() == reader.read()
    reader.limit = MAX_FRAME_BYTES
    assert long == reader.read()


@pytest.mark.parametrize(
    "body",
    [
        [{"type": "PING"}],
        1,
        {"type": "NO_SUCH_MESSAGE"},
        {"type": "TRIGGER", "req_id": 5, "entry_id": "x"},
        {"type": "TRIGGER", "req_id": "r"},
        {"no": "type"},
        "text",
    ],
)
def test_msgpack_that_is_not_a_message_is_refused(body):
    data = msgspec.msgpack.encode(body)
    reader = FrameReader()
    reader.feed(struct.pack(">I", len(data)) + data)
    with pytest.raises(FrameError, match="Not a message"):
        reader.read()


def test_unknown_fields_are_ignored():
    data = msgspec.msgpack.encode({"type": "PING", "later": {"more": 1}})
    reader = FrameReader()
    reader.feed(struct.pack(">I", len(data)) + data)
    assert Ping() == reader.read()


def test_value_msgpack_cannot_express_is_refused():
    tool = LlmToolRegister(plugin_id="p", name="n", description="", parameters={"maximum": 2**70}, timeout_seconds=1.0)
    with pytest.raises(FrameError, match="LlmToolRegister cannot be sent"):
        encode(tool)
    with pytest.raises(FrameError, match="cannot be sent"):
        encode(Crash(error="\ud800"))
    with pytest.raises(FrameError, match="bytes are more than"):
        encode(Result(req_id="r", success=True, data=bytes(MAX_FRAME_BYTES)))
