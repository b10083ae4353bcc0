"""The store that holds the files of a turn for each entry point, and their removal with the session."""

from __future__ import annotations

import base64
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.turns import agent
from media.pictures import png
from patchbay import ToolRunner
from patchbay.agents import AgentTool, DatabaseSessionService, InMemorySessionService, Runner
from patchbay.hooks import HookManager
from patchbay.media import MediaStore, shared_store
from patchbay.testing import ScriptedModel
from patchbay.tools import ToolContext
from patchbay.tools.output import ToolOutput
from patchbay.types import ToolCall

IMAGE = png(filler=4000)
URL = f"data:image/png;base64,{base64.b64encode(IMAGE).decode()}"


def look() -> str:
    return URL


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MediaStore]:
    with MediaStore(tmp_path / "store") as made:
        yield made


def painter() -> Any:
    return agent(ScriptedModel([ToolCall("1", "look"), "seen"] * 5), look, name="painter")


async def say(runner: Runner, user: str = "u", session: str = "s") -> None:
    async for event in runner.run(user, session, "hi"):
        assert event.error_code is None, event.error_message


def test_a_tool_runner_puts_files_into_the_store_that_it_was_given(store):
    before = shared_store().count
    seen: list[Any] = []

    def paint(tool_context: ToolContext) -> ToolOutput:
        seen.append(tool_context.media)
        return ToolOutput("painted", media=(tool_context.media.put(IMAGE),), response_handled=True)

    model = ScriptedModel([[ToolCall("1", "look"), ToolCall("2", "paint")], "done"])
    ToolRunner(model, [look, paint], media=store).run_sync("hi")
    assert (2, before, [store]) == (store.count, shared_store().count, seen)


@pytest.mark.parametrize(
    "make", [lambda media: ToolRunner(ScriptedModel([]), media=media), lambda media: Runner(painter(), media=media)]
)
def test_invalid_media_store_is_a_type_error(make):
    with pytest.raises(TypeError, match="media must be a MediaStore, not str"):
        make("/tmp")


@pytest.mark.parametrize("hooked", [False, True])
async def test_the_files_of_a_session_go_with_it_and_no_others(store, tmp_path, hooked):
    for service in (InMemorySessionService(), DatabaseSessionService(tmp_path / "sessions.db")):
        runner = Runner(painter(), "app", service, media=store, hooks=_watching() if hooked else None)
        # The first two are equal if names are joined by colons.
        for user, session in (("u", "s:t"), ("u:s", "t"), ("u", "s")):
            await say(runner, user, session)
        assert 3 == store.count
        for user, session, left in (("u", "s:t", 2), ("u", "nobody", 2), ("u:s", "t", 1), ("u", "s", 0)):
            await service.delete_session("app", user, session)
            assert left == store.count
        assert [] == [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        await service.close()


def _watching() -> HookManager:
    class Idle:
        async def before_tool(self, call: Any) -> None:
            return None

    manager = HookManager()
    manager.mount("idle", Idle())
    return manager


async def test_session_without_a_store_deletes_its_files_from_the_shared_one():
    service, before = InMemorySessionService(), shared_store().count
    await say(Runner(painter(), "no store of its own", service))
    assert before + 1 == shared_store().count
    await service.delete_session("no store of its own", "u", "s")
    assert before == shared_store().count


@pytest.mark.parametrize("hooked", [False, True])
async def test_files_of_an_agent_that_is_a_tool_are_the_callers_sessions(store, hooked):
    service = InMemorySessionService()
    boss = agent(ScriptedModel([ToolCall("1", "painter", '{"request": "paint"}'), "done"]), AgentTool(painter()), name="boss")
    await say(Runner(boss, "app", service, media=store, hooks=_watching() if hooked else None))
    assert 1 == store.count
    await service.delete_session("app", "u", "s")
    assert 0 == store.count


def test_an_agent_that_is_a_tool_of_a_tool_runner_has_the_runners_store(store):
    model = ScriptedModel([ToolCall("1", "painter", '{"request": "paint"}'), "done"])
    ToolRunner(model, [AgentTool(painter())], media=store).run_sync("hi")
    assert 1 == store.count


def test_session_service_holds_stores_weakly():
    service = InMemorySessionService()
    service.release_from(store := MediaStore())
    weakly = weakref.ref(store)
    del store
    assert weakly() is None
