"""Answers in lines: progress as it comes, one result at the end, and everything that a callback may make of it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay import ToolCall
from patchbay.executor import Executor, ToolExecution
from patchbay.server import progress_lines
from patchbay.server.callback_tool import CallbackDispatcher
from patchbay.server.progress_lines import (
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_PROGRESS_BYTES,
    ProgressReader,
    TooMuchProgressError,
    encode_line,
    is_accepted,
    progress_line,
)
from patchbay.server.settings import ToolsSettings
from patchbay.tools import Progress
from patchbay.tools.registry import Registration, ToolRegistry
from tools_server.rig import BOUND, Call, Script, calling_back, json_response, raw_response

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n"
RESULT = b'{"output": {"n": 1}, "is_error": false}\n'


def progress_response(*lines: bytes, head: bytes = HEAD) -> Script:
    """Answer with these lines, in chunks of one line each."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in lines)
    return raw_response(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")


def call_result(
    script: Script, *, limit: int = 1024 * 1024, on_progress: Any = None
) -> tuple[ToolExecution, list[Progress], Call]:
    """Call a callback with this script; return the execution, its progress and the request."""
    received: list[Progress] = []

    def hear(_call: ToolCall, progress: Progress) -> None:
        received.append(progress)
        if on_progress is not None:
            on_progress()

    async def main(url: str) -> ToolExecution:
        dispatcher = CallbackDispatcher(ToolsSettings(max_result_size=limit, connect_timeout=BOUND))
        registry = dispatcher.health.registry = ToolRegistry(["ann"], dispatcher.tool)
        registry.register(Registration("a", source="s", callback_url=url, timeout_seconds=BOUND))
        try:
            [execution] = await Executor(registry.snapshot("ann").tools.values(), on_progress=hear, max_result_chars=None).run(
                [ToolCall("c", "a", "{}")]
            )
        finally:
            await dispatcher.close()
        return execution

    with calling_back(script) as callback:
        execution = asyncio.run(main(callback.url))
    [call] = callback.calls
    return execution, received, call


def test_progress_is_forwarded_during_the_call() -> None:
    received = threading.Event()

    def script(connection: Any, _end: threading.Event) -> None:
        connection.sendall(HEAD + b'\r\n{"progress": {"message": "half", "fraction": 0.5, "data": {"books": 3}}}\n')
        assert received.wait(BOUND)  # nothing more is said until it was
        connection.sendall(RESULT)

    execution, progress, call = call_result(script, on_progress=received.set)
    assert ([Progress("half", 0.5, {"books": 3})], {"n": 1}) == (progress, execution.value)
    assert "application/json, application/x-ndjson;q=0.9" == call.header("accept")


@pytest.mark.parametrize(
    ("lines", "progress", "value"),
    [
        ([RESULT], [], {"n": 1}),
        ([RESULT[:-1]], [], {"n": 1}),  # without a line break at its end
        ([b"\r\n", b'{"progress": {}}\r\n', b"\n", RESULT, b"\n"], [Progress()], {"n": 1}),
        ([b'{"progress": {"fraction": 7}}\n', RESULT], [Progress(None, 1.0)], {"n": 1}),
        ([b'{"progress": {"fraction": -1e9, "message": 5}}\n', RESULT], [Progress(None, 0.0)], {"n": 1}),
        ([b'{"progress": {"fraction": true, "message": null, "more": 1}}\n', RESULT], [Progress()], {"n": 1}),
        ([b'{"progress": {"message": "\xc3\xa4"}}\n', b"[1, 2]\n"], [Progress("ä")], [1, 2]),
        ([b'{"progress": 0.5}\n'], [], {"progress": 0.5}),  # not valid progress, so an ordinary result
        ([b'{"progress": {}, "books": 5}\n'], [], {"progress": {}, "books": 5}),
        ([b'{"output": {"progress": {}}}\n'], [], {"progress": {}}),
    ],
)
def test_the_last_line_is_the_result(lines: list[bytes], progress: list[Progress], value: Any) -> None:
    execution, received, _ = call_result(progress_response(*lines))
    assert (None, value, progress) == (execution.error, execution.value, received)


@pytest.mark.parametrize(
    "bad",
    [b"no json", b"{", b'{"progress": "half"}', b'{"progress": {"fraction": NaN}}', b"\xff\xfe", b"[" * 5000, b"null", b"\0",
     b'{"progress": {"fraction": 1e999}}',
     b'{"progress": {"message": "\\ud800"}}', b'{"output": "an answer that something follows"}'],
)  # fmt: skip
def test_invalid_progress_line_is_skipped(bad: bytes) -> None:
    execution, received, _ = call_result(progress_response(bad + b"\n", b'{"progress": {"message": "go on"}}\n', RESULT))
    assert (None, {"n": 1}, "go on") == (execution.error, execution.value, received[-1].message)


NO_PROGRESS = b'{"progress": {}}\n'
HALF = b'{"progress": {"message": "half"}}\n'


@pytest.mark.parametrize(
    ("script", "progress", "words"),
    [
        (progress_response(), [], "ended before its result"),
        (progress_response(b"\n"), [], "ended before its result"),
        (progress_response(HALF), [Progress("half")], "ended before its result"),
        (progress_response(RESULT, NO_PROGRESS), [Progress()], "ended before its result"),
        (raw_response(HEAD + b"Content-Length: 500\r\n\r\n" + HALF + RESULT), [Progress("half")], "in the middle of the answer"),
        (progress_response(NO_PROGRESS, b'{"output": 1\n'), [Progress()], "JSON that cannot be read"),
        (progress_response(NO_PROGRESS, b"a web page\n"), [Progress()], "JSON that cannot be read"),
        (progress_response(NO_PROGRESS, b'{"is_error": true, "error": "not found"}\n'), [Progress()], "not found"),
        (progress_response(NO_PROGRESS, RESULT, head=HEAD.replace(b"200 OK", b"500 Oh")), [], "HTTP 500"),
    ],
    ids=["nothing", "a break", "progress", "after the result", "cut", "half JSON", "no JSON", "the tool's", "a failed request"],
)
def test_an_answer_in_lines_without_a_result_is_an_error(script: Script, progress: list[Progress], words: str) -> None:
    execution, received, _ = call_result(script)
    assert progress == received
    assert words in str(execution.error)


def test_an_answer_in_one_piece_is_read_as_before() -> None:
    execution, received, _ = call_result(json_response({"progress": {"message": "this is the result"}}))
    assert ([], {"progress": {"message": "this is the result"}}) == (received, execution.value)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_result_that_is_too_large_is_cut_with_a_note(end: bytes) -> None:
    execution, received, _ = call_result(
        progress_response(b'{"progress": {}}\n', b'{"output": "' + b"x" * 5000 + b'"}' + end), limit=1000
    )
    assert [Progress()] == received
    assert execution.value.startswith('{"output": "xxx')
    assert "larger than 1000 bytes" in execution.value


def test_progress_that_is_too_long_or_too_much_is_passed_over() -> None:
    many = [progress_line(str(number), None, None) for number in range(MAX_LINES + 100)]
    long = progress_line("x" * MAX_LINE_BYTES, None, None)
    execution, received, _ = call_result(progress_response(long, *many, RESULT))
    assert [str(number) for number in range(MAX_LINES)] == [progress.message for progress in received]
    assert {"n": 1} == execution.value


def test_a_callback_that_talks_without_end_is_stopped() -> None:
    line = progress_line("x" * 50_000, None, None)

    def script(connection: Any, end: threading.Event) -> None:
        connection.sendall(HEAD + b"\r\n")
        while not end.is_set():
            connection.sendall(line)

    execution, _, _ = call_result(script)
    assert f"more than {MAX_PROGRESS_BYTES} bytes of progress" in str(execution.error)


@pytest.mark.parametrize("line", [b"x\n", b'{"progress": {}}\n', b'{"output": 1}\n'])
def test_progress_lines_beyond_the_limit_are_not_decoded(line: bytes) -> None:
    """Else a callback that talks without end would keep the whole server busy."""
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    lines = ProgressReader(1000)
    sys.setprofile(count)
    try:
        for _ in range(10):
            lines.feed(line * MAX_LINES)
    finally:
        sys.setprofile(None)
    lines.feed(RESULT)
    assert (RESULT.strip(), True) == lines.close()
    assert calls < 3 * MAX_LINES


def test_endless_line_is_refused_and_not_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_lines, "MAX_PROGRESS_BYTES", 500_000)
    lines = ProgressReader(10)

    def feed() -> None:
        for _ in range(10):
            assert [] == lines.feed(b"\n" * 100_000)

    with pytest.raises(TooMuchProgressError):
        feed()


said = st.tuples(st.none() | st.text(), st.none() | st.floats(0, 1), st.none() | st.integers() | st.text())


@given(st.lists(said, max_size=5), st.data())
def test_response_is_read_equally_in_any_split(items: list[Any], data: st.DataObject) -> None:
    sent = [progress_line(message, fraction, None if about is None else json.dumps(about)) for message, fraction, about in items]
    whole = b"".join(sent) + encode_line(b'{"output":\n5}')
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    lines = ProgressReader(1000)
    received = [
        progress for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True) for progress in lines.feed(whole[start:end])
    ]
    expected = [(message, fraction, about) for message, fraction, about in items]
    assert expected == [(progress.message, progress.fraction, progress.data) for progress in received]
    assert (b'{"output": 5}', True) == lines.close()


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        ([], False),
        ([b"*/*"], False),
        ([b"application/json"], False),
        ([b"application/x-ndjson"], True),
        ([b"application/json, Application/X-NDJSON; q=0.9"], True),
        ([b"application/json", b"application/x-ndjson"], True),
        ([b",;,=;\xff"], False),
    ],
)
def test_progress_lines_require_an_accept_header(accept: list[bytes], accepted: bool) -> None:
    assert accepted == is_accepted(accept)
