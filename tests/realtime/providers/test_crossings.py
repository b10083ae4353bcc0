"""Frames that cross on the wire or are duplicated are handled correctly."""

from __future__ import annotations

from patchbay.realtime import RealtimeSettings
from patchbay.realtime.providers.base import CallResult, Line
from patchbay.realtime.providers.call_keys import CallKeys, CallReference
from patchbay.realtime.providers.gemini import GeminiDialect
from patchbay.realtime.server_events import ResponseDone, ResponseStarted


def test_call_with_equal_arguments_matches_by_name_first():
    keys = CallKeys("r")
    same = '{"city": "Rome"}'
    nameless = keys.find(CallReference(index=2, whole=True, arguments=same))
    named = keys.find(CallReference(index=1, name="look_up", whole=True, arguments=same))
    listed = [
        CallReference(item="a", name="look_up", whole=True, arguments=same),
        CallReference(item="b", name="pay", whole=True, arguments=same),
    ]
    assert [named.key, nameless.key] == [known.key for known, _ in keys.match_all(listed)]


def test_end_of_an_interrupted_turn_does_not_answer_input_sent_in_between():
    one = GeminiDialect(RealtimeSettings(model="m", provider="gemini"))
    one.read({"setupComplete": {}})
    one.read({"toolCall": {"functionCalls": [{"id": "c", "name": "look"}]}})
    one.read({"serverContent": {"interrupted": True}})
    one.result_frames([CallResult("c", "look", "{}")])
    one.text_frames(Line("user", "And now?"), answer=True)
    assert [] == one.read({"serverContent": {"turnComplete": True}})
    began, ended = one.read({"serverContent": {"turnComplete": True}})  # an answer of nothing is one
    assert (ResponseStarted, ResponseDone) == (type(began), type(ended))
