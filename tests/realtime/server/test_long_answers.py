"""A client that reads gets all of an answer that comes at once, however long it is: text, and speech."""

from __future__ import annotations

import pytest

from patchbay.testing import ScriptedUpstream, Text
from patchbay.testing.realtime import FakeGemini, FakeOpenAI, Say

from .rig import serving

WORDS = "".join(f"{number:04d} " for number in range(6_000))
FIVE_MINUTES = bytes(range(250)) * (24_000 * 2 * 300 // 250)


@pytest.mark.parametrize("provider", [FakeOpenAI, FakeGemini])
def test_five_minutes_of_buffered_speech_reach_a_reading_client(provider):
    with (
        provider([Say(WORDS, audio=FIVE_MINUTES)]) as fake,
        serving(fake) as server,
        server.session(query="audio=binary", max_size=None) as client,
    ):
        client.text("Go on.")
        client.idle()
    assert [] == client.of("dropped")
    assert FIVE_MINUTES == b"".join(frame for frame in client.frames if isinstance(frame, bytes))
    spoken = [frame["text"] for frame in client.of("transcript") if frame["role"] == "assistant" and not frame["whole"]]
    assert WORDS == "".join(spoken)


def test_long_buffered_text_reaches_a_reading_client():
    with (
        ScriptedUpstream([Text(WORDS)]) as upstream,
        serving(upstream=upstream.url) as server,
        server.session(query="model=m") as client,
    ):
        assert WORDS == client.answer("Go on.")
    assert [] == client.of("dropped")
