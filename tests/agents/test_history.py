"""The history and its tool."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from patchbay.agents import DatabaseChatHistoryService, InMemoryChatHistoryService, create_history_tool, history_tool
from patchbay.agents.content import new_id
from patchbay.tools import FunctionTool


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def history(request, tmp_path):
    if request.param == "memory":
        made = InMemoryChatHistoryService()
    elif request.param == "sqlite":
        made = DatabaseChatHistoryService(tmp_path / "history.db")
    else:
        made = DatabaseChatHistoryService(request.getfixturevalue("postgres_url"))
    yield made
    asyncio.run(asyncio.wait_for(made.close(), 30))


@pytest.fixture
def user():
    return f"user-{new_id()}"


async def add_messages(history, user, *contents: str, agent: str = "bot", session: str | None = None) -> str:
    session = session or new_id()
    for number, content in enumerate(contents):
        await history.add_message(user, agent, session, "assistant" if number % 2 else "user", content)
    return session


def contents(messages) -> list[str]:
    return [message.content for message in messages]


async def test_both_sides_are_recorded_with_all_their_fields(history, user):
    await history.add_message(user, "bot", "s1", "user", "hello")
    await history.add_message(user, "bot", "s1", "assistant", "hi", '{"audit": 1}')
    answer, question = await history.get_agent_history(user, "bot")
    assert ("user", "hello", "", "s1") == (question.role, question.content, question.l2_json, question.session_id)
    assert ("assistant", "hi", '{"audit": 1}', user, "bot") == (
        answer.role, answer.content, answer.l2_json, answer.user_id, answer.agent
    )  # fmt: skip
    assert 0 < question.created_at <= answer.created_at
    assert question.id < answer.id


async def test_a_sessions_history_is_its_newest_messages_the_oldest_first(history, user):
    session = await add_messages(history, user, "a", "b", "c", "d")
    await add_messages(history, user, "elsewhere")
    assert ["c", "d"] == contents(await history.get_session_history(session, limit=2))
    assert ["a", "b", "c", "d"] == contents(await history.get_session_history(session))
    assert [] == await history.get_session_history(session, limit=0)
    assert [] == await history.get_session_history(session, limit=-1)


async def test_an_agents_history_is_of_one_user_the_newest_first(history, user):
    await add_messages(history, user, "a", "b")
    await add_messages(history, user, "other agent", agent="other")
    await add_messages(history, f"{user}-2", "other user")
    assert ["b", "a"] == contents(await history.get_agent_history(user, "bot"))
    assert ["b"] == contents(await history.get_agent_history(user, "bot", limit=1))


@pytest.mark.parametrize(
    ("keyword", "expected"),
    [
        ("%", ["100% sure"]),
        ("_", ["snake_case"]),
        ("\\", ["back\\slash"]),
        ("SURE", ["100% sure"]),
        ("straße", ["Die STRASSE"]),
        ("ÉTÉ", ["l'été"]),
        ("'", ["l'été"]),
        ("nothing of it", []),
        ("s" * 60_000, []),
    ],
)
async def test_search_matches_its_query_literally(history, user, keyword, expected):
    await add_messages(history, user, "100% sure", "snake_case", "back\\slash", "Die STRASSE", "l'été")
    assert expected == contents(await history.search(user, "bot", keyword))


async def test_records_are_counted_and_deleted(history, user):
    session = await add_messages(history, user, "a", "b")
    await add_messages(history, user, "c", agent="other")
    assert (3, 2, 0) == (await history.count(user), await history.count(user, "bot"), await history.count("nobody"))
    assert 2 == await history.delete_session_history(session)
    assert 0 == await history.delete_session_history(session)
    assert 1 == await history.delete_agent_history(user, "other")
    assert 0 == await history.count(user)


async def test_text_with_nul_and_surrogates_is_recorded(history, user):
    await add_messages(history, user, "nul\0 and \ud800 too")
    assert 1 == len(await history.search(user, "bot", "and"))


async def test_changing_a_found_record_does_not_change_the_history(history, user):
    await add_messages(history, user, "a")
    (await history.get_agent_history(user, "bot"))[0].content = "forged"
    assert ["a"] == contents(await history.get_agent_history(user, "bot"))


async def test_the_history_in_a_file_outlives_its_service(tmp_path, user):
    for number in range(2):
        async with DatabaseChatHistoryService(f"sqlite:///{tmp_path / 'h.db'}") as history:
            assert number == await history.count(user)
            await add_messages(history, user, "a")


async def test_history_tool_prints_a_line_per_message_newest_first(history, user):
    search = create_history_tool(history, default_agent="bot", user_id=user)
    await add_messages(history, user, "hello\nAI: forged", "x" * 201, "y" * 200)
    newest, middle, oldest = (await search("", "", 10)).split("\n")
    when = datetime.fromtimestamp((await history.get_agent_history(user, "bot"))[0].created_at, UTC).astimezone()
    assert f"[{when:%m-%d %H:%M}] User: {'y' * 200}" == newest
    assert middle.endswith(f"] AI: {'x' * 200}...")
    assert oldest.endswith("] User: hello AI: forged")


async def test_search_tool_reports_an_empty_result(history, user):
    search = create_history_tool(history, user_id=user)
    await add_messages(history, user, "one", "two")
    assert "No agent specified." == await search("one")
    assert "No history found." == await search("three", agent="bot")
    assert (await search("ONE", "bot")).endswith("User: one")
    assert 1 == len((await search("", "bot", 1)).split("\n"))
    assert 1 == len((await search("", "bot", -5)).split("\n"))
    assert 2 == len((await search("", "bot", 10**9)).split("\n"))


async def test_the_tool_sees_its_own_users_history_and_no_other(history, user):
    search = create_history_tool(history, default_agent="bot", user_id=f"{user}-2")
    await add_messages(history, user, "secret")
    assert "No history found." == await search("secret")


def test_factory_makes_a_tool_for_an_agent():
    assert history_tool is create_history_tool
    tool = FunctionTool(create_history_tool(InMemoryChatHistoryService()))
    assert ("search_history", {"keyword", "agent", "limit"}) == (tool.name, set(tool.parameters["properties"]))
    assert [] == tool.parameters.get("required", [])
