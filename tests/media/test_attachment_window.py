"""Files of results in a request: those of this turn, the newest, and no more than servers accept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from media.turns import play
from patchbay.loop import FinalEvent, conversation
from patchbay.loop.conversation import LEFT_OUT, MOST_FILES, AttachmentWindow
from patchbay.types import Attachment, ToolCall

ASKED = {"role": "user", "content": "hi"}
OUT = {"type": "text", "text": LEFT_OUT}


def image(number: int, size: int = 8) -> Attachment:
    return Attachment(b"\x89PNG" + bytes([number]) * size, "image/png")


def played(rounds: list[Any], messages: list[Any] | None = None) -> tuple[list[list[Any]], FinalEvent]:
    """Play a turn of calls that return one of ``rounds`` each; return the messages of each request, and the end."""
    values = iter(rounds)

    async def look() -> Any:
        return next(values)

    script = [*([ToolCall(f"c{number}", "look")] for number in range(len(rounds))), "done"]
    events, model = play(script, look, attachments=["image"], messages=messages or [ASKED], max_repeats=None)
    assert isinstance(events[-1], FinalEvent)
    return [list(request.messages) for request in model.requests], events[-1]


def files(messages: list[Any]) -> list[bool]:
    """Return for each file of the messages whether it is shown."""
    parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
    return [part != OUT for part in parts if part["type"] != "text" or part == OUT]


def test_few_files_are_all_shown():
    requests, final = played([[image(1), image(2)], "words", image(3)])
    assert [[], [True] * 2, [True] * 2, [True] * 3] == [files(each) for each in requests]
    assert final.messages[: len(requests[-1])] == requests[-1]


def test_oldest_files_are_removed_in_batches_to_keep_the_prompt_cache():
    requests, final = played([image(number) for number in range(MOST_FILES + 6)])
    assert [True] * MOST_FILES == files(requests[MOST_FILES])
    kept = MOST_FILES * 3 // 4
    assert [False] * (MOST_FILES + 1 - kept) + [True] * kept == files(requests[MOST_FILES + 1])
    changed = [
        number for number in range(1, len(requests)) if requests[number][: len(requests[number - 1])] != requests[number - 1]
    ]
    assert [MOST_FILES + 1, MOST_FILES + 1 + MOST_FILES - kept + 1] == changed
    assert all(sum(files(each)) <= MOST_FILES for each in requests)
    assert [True] * (MOST_FILES + 6) == files(final.messages), "the returned conversation has all files"


def test_first_files_are_shown_of_more_than_the_limit():
    requests, _ = played([image(0), [image(number) for number in range(MOST_FILES + 3)]])
    assert [False] + [True] * MOST_FILES + [False] * 3 == files(requests[-1])


def test_files_beyond_the_size_limit_are_removed_and_oversized_ones_never_sent(monkeypatch):
    monkeypatch.setattr(conversation, "MOST_CHARS", 4000)
    requests, _ = played([image(1, 1200), image(2, 1200), [image(3, 9000), image(4, 100)], image(5, 2200)])
    assert [[], [True], [True] * 2, [True, True, False, True], [False] * 2 + [False, False, True]] == [
        files(each) for each in requests
    ]
    assert "AwMD" * 100 not in json.dumps(requests)


def test_files_of_earlier_turns_are_not_sent_again():
    _, first = played([image(1)])
    requests, final = played([image(2)], [*first.messages, {"role": "user", "content": "and now?"}])
    assert [[False], [False, True]] == [files(each) for each in requests]
    assert [True, True] == files(final.messages)


def test_turn_continued_in_another_request_keeps_its_files():
    # Where the caller carries out calls itself, and where one agent hands over to another.
    _, first = played([image(number) for number in range(MOST_FILES)])
    going_on = first.messages[:-1]
    requests, _ = played([image(20)], going_on)
    assert [True] * MOST_FILES == files(requests[0])
    alone, _ = played([image(number) for number in [*range(MOST_FILES), 20]])
    assert files(alone[-1]) == files(requests[-1])


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": [image(1).to_openai()]}, ASKED],
        [{"role": "user", "content": [{"type": "text", "text": "look:"}, image(1).to_openai()]}, ASKED],
        [{"role": "tool", "tool_call_id": "1", "content": "x"}, {"role": "user", "content": [image(1).to_openai()]}, ASKED],
        [{"role": "user", "content": []}, ASKED],
        ["odd", {"role": "user", "content": [None, "x", {"type": "text"}]}],
    ],
)
def test_caller_messages_are_sent_unchanged(messages):
    assert messages == AttachmentWindow(messages).view(messages)
