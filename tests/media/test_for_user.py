"""Output for the user and for the model: ``for_user``, ``silent``, ``response_handled``, and the model's notes on them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from media.pictures import png
from media.turns import play
from patchbay.hooks import Modify, Respond
from patchbay.loop import FinalEvent, UserOutputEvent
from patchbay.media import MediaStore
from patchbay.tools.output import OutputError, ToolOutput
from patchbay.types import ToolCall

IMAGE = png(filler=400)
URL = f"data:image/png;base64,{base64.b64encode(IMAGE).decode()}"
GIVEN = "(The user has been given this output. Do not call a tool to deliver it again.)"


@pytest.fixture
def store(tmp_path):
    with MediaStore(tmp_path / "store") as made:
        yield made


def played(store: MediaStore, *outputs: Any, hook: Any = None) -> tuple[list[UserOutputEvent], FinalEvent, int]:
    """Play a turn whose first reply calls a tool for each of ``outputs``; return what the user is given, the end, the requests."""

    async def give(number: int) -> Any:
        return outputs[number]

    calls = [ToolCall(f"c{number}", "give", f'{{"number": {number}}}') for number in range(len(outputs))]
    events, model = play([calls, "said"], give, hook=hook, media=store)
    return [event for event in events if isinstance(event, UserOutputEvent)], events[-1], len(model.requests)


@pytest.mark.parametrize("handled", [False, True])
def test_text_for_the_user_is_not_for_the_model(store, handled):
    shown, final, _ = played(store, ToolOutput("for the model", for_user="for him", response_handled=handled))
    assert [("for him", handled)] == [(each.text, each.handled) for each in shown]
    assert "for him" not in final.tool_executions[0].content


@pytest.mark.parametrize("handled", [False, True])
def test_silent_result_shows_nothing_to_the_user(store, handled):
    shown, final, requests = played(store, ToolOutput("for the model", for_user="for him", silent=True, response_handled=handled))
    assert [] == shown
    assert (1 if handled else 2, handled) == (requests, final.handled)


def test_files_of_a_silent_answer_are_the_users_without_its_words(store):
    shown, _, _ = played(store, ToolOutput("drawn", for_user="Look!", silent=True, media=(URL,), response_handled=True))
    assert [("", IMAGE)] == [(each.text, store.read(each.media[0])) for each in shown]


def test_files_for_the_model_are_not_the_users(store):
    shown, _, _ = played(store, ToolOutput("drawn", for_user="Look!", media=(URL,)))
    assert [("Look!", (), False)] == [(each.text, each.media, each.handled) for each in shown]


HANDLED = ToolOutput("a", response_handled=True)


@pytest.mark.parametrize(
    ("outputs", "requests"),
    [
        ([HANDLED, HANDLED], 1),
        ([HANDLED, ToolOutput("b")], 2),
        ([HANDLED, "b"], 2),
        ([HANDLED, ToolOutput("b", response_handled=True, is_error=True)], 2),
        ([HANDLED, ToolOutput("b", response_handled=True, media=("media://no",))], 2),
    ],
)
def test_turn_ends_if_every_call_answered_the_user(store, outputs, requests):
    _, final, asked = played(store, *outputs)
    assert (requests, requests == 1) == (asked, final.handled)
    assert ("" if requests == 1 else "said") == final.content
    last = {"role": "assistant", "content": "Requested output delivered via tool attachment." if requests == 1 else "said"}
    assert last == final.messages[-1]


@pytest.mark.parametrize("point", ["before_tool", "after_tool"])
def test_unavailable_user_files_of_a_hook_are_an_error_and_the_turn_continues(store, point):
    texts = {"for_llm": "sent", "media": ["media://abc123"], "response_handled": True}

    class Painter:
        async def before_tool(self, call: Any) -> Any:
            return Respond(texts) if point == "before_tool" else None

        async def after_tool(self, result: Any) -> Any:
            return Modify({"result": texts})

    shown, final, requests = played(store, "plain", hook=Painter())
    (execution,) = final.tool_executions
    assert ([], 2, False) == (shown, requests, final.handled)
    assert isinstance(execution.error, OutputError)
    assert not execution.error.output.response_handled
    assert execution.content.startswith("failed to deliver attachment: media store: unknown ref: media://abc123")
    assert GIVEN not in execution.content


def test_notes_on_answer_and_files_are_not_repeated():
    tags = "Local artifact paths: [file:/a] [file:/b]"
    output = ToolOutput("drawn", response_handled=True, artifact_tags=("[file:/a]", "[file:/b]"))
    assert output.text.startswith(f"drawn\n{GIVEN}\n{tags}\n")
    again = ToolOutput(output.text, response_handled=True, artifact_tags=output.artifact_tags)
    assert output.text == again.text
    assert GIVEN == ToolOutput(response_handled=True).text
