"""What a model was shown stays what it is shown: each request begins with the one before, so that its server's prompt cache holds.

Files of results are for their turn: the first request of the next one has words in their place.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from patchbay.agents import DatabaseSessionService, InMemorySessionService, LlmAgent
from patchbay.errors import ToolFailed
from patchbay.loop.conversation import LEFT_OUT
from patchbay.models.chat_model import ModelReply
from patchbay.testing import ScriptedModel
from patchbay.tools import BaseTool
from patchbay.types import Attachment, IncompleteCall, Reply, ToolCall
from support.repeated import examples

from .turns import Chat, assert_settled


class ValueTool(BaseTool):
    """Returns or raises one of ``values``."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__("give", "Give a value.")
        self.values = values

    def get_declaration(self) -> dict[str, Any]:
        return {"name": "give", "parameters": {"type": "object", "properties": {"n": {}}}}

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        for _ in range(6 * len(str(args)) % 20):  # some settle together, some apart
            await asyncio.sleep(0)
        value = self.values[args["n"] % len(self.values)] if isinstance(args.get("n"), int) else args
        if isinstance(value, BaseException):
            raise value
        return value() if callable(value) else value


class Dotted(BaseTool):
    """A tool with a name that some servers reject."""

    def __init__(self) -> None:
        super().__init__("files.look at", "Look at files.")

    def get_declaration(self) -> dict[str, Any]:
        return {"name": self.name, "parameters": {"type": "object", "properties": {}}}

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        return args


async def never() -> None:
    """Take longer than there is time."""
    await asyncio.Event().wait()


TEXT = st.text(alphabet=st.characters() | st.sampled_from('\ud800\udfff\x00\n {}"é'), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(2**62, 2**70) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
IMAGE = Attachment(b"\x89PNG", "image/png", "a.png")
ATTACHED = st.sampled_from(
    [
        IMAGE,
        [IMAGE, "and words", Attachment(b"RIFF", "audio/wav")],
        {"file": Attachment(b"%PDF", "application/pdf", "a.pdf"), "n": 1},
    ]
)
ODD = st.sampled_from(
    [
        ValueError("no"),
        KeyError("k"),
        AssertionError(),
        ToolFailed("it can not"),
        ToolFailed("Error: twice"),
        TimeoutError("mine"),
        "x" * 60_000,
        ["y" * 1_000] * 70,
        {"error": "z" * 60_000},
        {"error": "said by the tool"},
        {"error": "Error: so"},
        {"result": 1},
        {"result": "text"},
        {1, 2},
        b"\xff\x00",
        b"text",
        dt.date(2026, 1, 2),
        {1: {2: 3}},
        object,
        lambda: iter([1, 2]),
        lambda: (number for number in range(3)),
        float("nan"),
        2**80,
        "",
        "\ud800",
    ]
)
RAW = st.one_of(
    st.integers(0, 3).map(lambda n: f'{{"n":{n}}}'),
    st.integers(0, 3).map(lambda n: f'{{ "n" :\n{n}, "n": {n} }}'),
    JSON.map(lambda value: json.dumps({"v": value})),
    JSON.map(lambda value: json.dumps({"v": value}, ensure_ascii=False, separators=(",", ":"))),
    st.sampled_from(
        ["", "null", "[]", '{"a', '{"n": NaN}', '{"n": 1e400}', '{"n": 1e5, "m": -0.0, "l": -0}', "{}" * 2, '"x"', "[" * 200]
    ),
    TEXT,
)
NAME = st.sampled_from(["give", "give", "give", "never", "files.look at", "no such tool!", "", "n" * 90, "\ud800"])
EXTRA = st.sampled_from([None, {"extra_content": {"google": {"thought_signature": "abc"}}}])
CALL = st.builds(ToolCall, st.sampled_from(["", "call_0", "call_1", "\ud800"]), NAME, RAW, EXTRA)
CUT = st.builds(lambda name, raw: IncompleteCall("", name, raw, raw), NAME, RAW)
ASKING = st.builds(
    lambda content, reasoning, calls, cut, extra: Reply(content, reasoning, tuple(calls), tuple(cut), extra=extra),
    st.none() | TEXT,
    st.none() | TEXT,
    st.lists(CALL, min_size=1, max_size=4),
    st.lists(CUT, max_size=1),
    st.sampled_from([None, {"reasoning_content": "hm"}, {"reasoning_content": "\ud800"}]),
)
ANSWER = st.builds(
    lambda content, reasoning, extra: Reply(content, reasoning, extra=extra),
    st.sampled_from(["done", "\ud800 é\x00", " ", "{}"]),
    st.none() | TEXT,
    st.sampled_from([None, {"reasoning_content": "hm"}]),
)
TURN = st.tuples(TEXT.filter(bool), st.lists(ASKING, max_size=3), ANSWER | st.just(RuntimeError("down")) | st.just(Reply(None)))


def in_words(message: dict[str, Any]) -> dict[str, Any]:
    """A message with files as it is in later turns."""
    if message["role"] != "user" or isinstance(message["content"], str):
        return message
    return {**message, "content": "\n".join(part.get("text", LEFT_OUT) for part in message["content"])}


@settings(max_examples=examples(6))
@given(
    st.lists(TURN, min_size=1, max_size=3), st.lists(ATTACHED | ODD | JSON, min_size=1, max_size=4), st.booleans(), st.booleans()
)
def test_for_any_session_each_request_begins_with_the_one_before(turns, values, in_database, reopened):  # law 7
    steps: list[Any] = [step for _, asking, answer in turns for step in (*asking, answer)]
    model = ScriptedModel([ModelReply(step, "stop") if isinstance(step, Reply) else step for step in steps])
    agent = LlmAgent(
        name="a",
        model=model,
        instruction="Be so.",
        tools=[ValueTool(values), never, Dotted()],
        attachments=["image", "audio", "file"],
    )

    async def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "sessions.db"
            service: Any = DatabaseSessionService(path) if in_database else InMemorySessionService()
            for message, _, _ in turns:
                await Chat(agent, service).say(message, tool_timeout=0.005, max_history_events=None)
                if in_database and reopened:
                    await service.close()
                    service = DatabaseSessionService(path)
            await service.close()

    asyncio.run(main())
    before: list[Any] = []
    received: list[Any] = []
    for request in model.requests:
        assert received == list(request.tools[: len(received)]), "what is said of tools stands before the messages"
        received = list(request.tools)
        messages = list(request.messages)
        if any(message["role"] == "user" and isinstance(message["content"], str) for message in messages[len(before) :]):
            before = [in_words(message) for message in before]  # of the turn that has ended
        assert before == messages[: len(before)]
        assert json.dumps(before) == json.dumps(messages[: len(before)]), "also the order of members, and 1 is not 1.0"
        assert_settled(messages)
        json.dumps(messages, ensure_ascii=False).encode()
        before = messages
    model.assert_consumed()
