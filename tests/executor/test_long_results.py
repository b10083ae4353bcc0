"""Long results: an excerpt for the model, the stored text, and the tool that reads it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.executor import Executor, Run, ToolExecution
from patchbay.tools.result_store import MemoryResultStore
from patchbay.tools.results import excerpt
from patchbay.types import ToolCall

LIMIT = 1000
TEXT = "".join(f"line {number}\n" for number in range(1000))


def run_calls(tools: list[Any], *calls: ToolCall, store: Any = None, **options: Any) -> tuple[list[ToolExecution], Run]:
    """Carry out one call after the other, in one run."""

    async def main() -> tuple[list[ToolExecution], Run]:
        run = Executor(tools, **{"max_result_chars": LIMIT, **options}).begin_run(results=store)
        done = []
        for call in calls:
            batch = run.start_batch([call])
            done.append(await asyncio.wait_for(anext(batch), 30))
        return done, run

    return asyncio.run(main())


async def read_log() -> str:
    return TEXT


READ = ToolCall("1", "read_log")


def reading(**arguments: Any) -> ToolCall:
    import json

    return ToolCall("2", "read_result", json.dumps({"result_id": "result_1", **arguments}))


def test_long_result_keeps_head_and_tail_and_notes_how_to_read_the_rest():
    (done,), _ = run_calls([read_log], READ)
    assert len(done.content) <= LIMIT
    assert TEXT == done.value
    assert done.content.startswith("line 0\nline 1\n")
    assert done.content.endswith("\nline 998\nline 999\n")
    note = re.search(r"\[\.\.\. (\d+) of (\d+) characters are left out here, from (\d+) to (\d+)\. (.*) \.\.\.\]", done.content)
    assert note is not None
    missing, total, begin, end = map(int, note.groups()[:4])
    assert (len(TEXT), end - begin) == (total, missing)
    assert TEXT == f"{done.content[: note.start() - 1]}{TEXT[begin:end]}{done.content[note.end() + 1 :]}"
    assert f'Read them with read_result(result_id="result_1", offset={begin}).' == note[5]


def test_result_reader_is_offered_last_and_only_with_long_results():
    async def short() -> str:
        return "x" * LIMIT

    _, run = run_calls([read_log, short], ToolCall("1", "short"))
    assert ["read_log", "short"] == [spec.name for spec in run.specs] == list(run.tools)
    _, run = run_calls([read_log, short], READ, READ)
    assert ["read_log", "short", "read_result"] == [spec.name for spec in run.specs]


async def test_long_result_is_read_in_bounded_pieces():
    run = Executor([read_log], max_result_chars=LIMIT).begin_run()
    await anext(run.start_batch([READ]))
    whole = ""
    while len(whole) < len(TEXT):
        done = await anext(run.start_batch([reading(offset=len(whole), length=100_000)]))
        assert len(done.content) <= LIMIT
        heading, _, piece = done.content.partition("\n")
        assert f"[result_1: characters {len(whole)} to {len(whole) + len(piece)} of {len(TEXT)}]" == heading
        whole += piece
    assert ["read_log", "read_result"] == list(run.tools)
    assert TEXT == whole


def test_the_reader_finds_a_place_by_its_text():
    (_, done), _ = run_calls([read_log], READ, reading(find="line 500", length=8))
    place = TEXT.index("line 500")
    assert f"[result_1: characters {place} to {place + 8} of {len(TEXT)}]\nline 500" == done.content


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"offset": 10**9}, f"result_1 has only {len(TEXT)} characters."),
        ({"find": "no such line"}, "does not stand in result_1"),
        ({"result_id": "result_9"}, "No result 'result_9' is kept (any more)."),
        ({"offset": -1}, "/offset"),
        ({"length": "ten"}, "/length"),
    ],
)
def test_invalid_reader_calls_are_explained(arguments, words):
    (_, done), _ = run_calls([read_log], READ, reading(**arguments))
    assert done.is_error
    assert words in done.content


def test_own_tool_keeps_the_readers_name():
    async def read_result() -> str:
        return TEXT

    (done,), run = run_calls([read_result], ToolCall("1", "read_result"))
    assert ["read_result", "read_result_"] == list(run.tools)
    assert "read_result_(result_id=" in done.content


def test_equal_texts_are_stored_once_so_that_repetitions_are_detected():
    done, _ = run_calls([read_log], READ, READ, READ, READ)
    assert [None, None, None, "repeated_call"] == [execution.result.code for execution in done]
    assert done[0].content == done[2].content


def test_non_text_values_are_stored_as_json():
    async def rows() -> list[int]:
        return list(range(2000))

    (_, done), _ = run_calls([rows], ToolCall("1", "rows"), reading(length=10))
    assert done.content.endswith("\n[0, 1, 2, ")


def test_errors_are_cut_too():
    async def fail() -> None:
        raise ValueError("x" * 100_000)

    (done,), run = run_calls([fail], ToolCall("1", "fail"))
    assert len(done.content) <= LIMIT
    assert done.content.startswith("Error: tool 'fail' failed: ValueError: xxx")
    assert ["fail"] == list(run.tools)


def test_long_results_are_unlimited_without_a_limit():
    (done,), run = run_calls([read_log], READ, max_result_chars=None)
    assert (TEXT, ["read_log"]) == (done.content, list(run.tools))


def test_custom_store_is_used_and_a_failing_one_loses_only_the_middle(caplog):
    class Broken:
        async def keep(self, text: str) -> str:
            raise OSError("disk full")

        async def read(self, result_id: str) -> str | None:
            return None

    (done,), run = run_calls([read_log], READ, store=Broken())
    assert ["read_log"] == list(run.tools)
    assert "characters are left out here" in done.content
    assert "read_result" not in done.content
    assert "disk full" in caplog.text
    store = MemoryResultStore()
    run_calls([read_log], READ, store=store)
    (done,), _ = run_calls([read_log], ToolCall("1", "read_log"), store=store)
    assert 'result_id="result_1"' in done.content


@pytest.mark.parametrize("limit", [LIMIT, None])
async def test_a_later_run_with_the_same_store_may_offer_the_reader_from_the_start(limit):
    store = MemoryResultStore()
    executor = Executor([read_log], max_result_chars=limit)
    kept = await store.keep(TEXT)
    run = executor.begin_run(results=store, offer_reader=True)
    assert ["read_log", "read_result"] == [spec.name for spec in run.specs] == list(run.tools)
    pieces = [await anext(run.start_batch([call])) for call in (reading(result_id=kept, length=6), READ)]
    assert ["read_log"] == list(executor.tools) == list(executor.begin_run(results=store).tools)
    assert ["read_log"] == list(executor.begin_run(offer_reader=True).tools), "there is nothing to be read"
    (piece, shown), tools = [done.content for done in pieces], list(run.tools)
    assert "[result_1: characters 0 to 6 of 8890]\nline 0" == piece
    assert (limit is None) == (TEXT == shown)
    assert ["read_log", "read_result"] == tools


async def test_memory_is_bounded_and_keeps_the_newest():
    store = MemoryResultStore(max_chars=10)
    ids = [await store.keep(text) for text in ("aaaa", "bbbb", "cccc", "d" * 50)]
    assert ["result_1", "result_2", "result_3", "result_4"] == ids
    kept = [await store.read(each) for each in ids]
    assert "result_5" == await store.keep("aaaa")
    assert [None, None, None, "d" * 50] == kept


@given(st.text(alphabet=st.characters() | st.sampled_from("\n"), max_size=5000), st.integers(1000, 3000))
def test_excerpt_respects_its_limit_and_short_text_is_complete(text, limit):
    shown = excerpt(text, limit, how_to_read=lambda place: f'Read them with read_result(result_id="result_12", offset={place}).')
    assert len(shown) <= limit
    if len(text) <= limit:
        assert text == shown
    else:
        head, _, tail = shown.partition("\n[...")
        assert text.startswith(head)
        assert text.endswith(tail.rpartition("...]\n")[2])
        assert len(head) > limit // 4


@pytest.mark.parametrize("when", ["before", "after"])
async def test_result_reader_is_available_after_tools_are_replaced(when):
    async def read_result() -> str:
        return "mine"

    run = Executor([read_log], max_result_chars=LIMIT).begin_run()
    others = Executor([read_log, read_result]).tools
    if when == "before":
        run.set_tools(others)
    await anext(run.start_batch([READ]))
    if when == "after":
        run.set_tools(others)
        await anext(run.start_batch([READ]))
    calls = ToolCall("2", "read_result"), ToolCall("3", "read_result_", '{"result_id": "result_1", "length": 6}')
    shown = [(await anext(run.start_batch([call]))).content for call in calls]
    assert ["mine", "[result_1: characters 0 to 6 of 8890]\nline 0"] == shown
    assert ["read_log", "read_result", "read_result_"] == [spec.name for spec in run.specs]
