"""``?resume=1``: a client whose server was killed goes on with its conversation on another server of the same store."""

from __future__ import annotations

from patchbay.testing import Raw, ScriptedUpstream
from patchbay.testing.realtime import FakeOpenAI
from support.served import wait_for
from tools_server.rig import calling_back, json_response

from .rig import calling, serving

QUERY = "session=monday&resume=1"


def test_chat_goes_on_at_another_server_and_repeats_no_call(new_postgres):
    flags = ("--store", new_postgres, "--tools", "native")
    with (
        ScriptedUpstream([calling("look"), Raw(end="hang"), "It was seen.", "Yes.", Raw(end="hang"), "Now."]) as upstream,
        calling_back(json_response({"output": "seen"})) as callback,
        serving(None, *flags, upstream=upstream.url) as first,
        serving(None, *flags, upstream=upstream.url) as second,
    ):
        first.http.register("look", callback.url)
        with first.session(query=f"model=small&{QUERY}") as client:
            assert 0 == client.frames[0]["history"]
            client.text("Look.")
            client.until("tool_result")
            first.kill()
            client.closed()
        with second.session(query=f"model=small&{QUERY}") as client:
            assert 3 == client.frames[0]["history"]  # the question, the call and its result
            client.say(type="respond")
            client.idle()
            assert "It was seen." == "".join(frame["delta"] for frame in client.of("text"))
        assert ["user", "assistant", "tool"] == [each["role"] for each in upstream.chats[-1].json["messages"]]
        assert "seen" == upstream.chats[-1].json["messages"][-1]["content"]
        with second.session(query=f"model=small&{QUERY}") as client:
            assert "Yes." == client.answer("Sure?")
            client.text("And now?")
            wait_for(lambda: 5 == len(upstream.chats))
            second.kill()
            client.closed()
        with serving(None, *flags, upstream=upstream.url) as third, third.session(query=f"model=small&{QUERY}") as client:
            client.say(type="respond")
            client.idle()
            assert "Now." == "".join(frame["delta"] for frame in client.of("text"))
    assert 1 == len(callback.calls)


def test_realtime_model_is_given_what_was_said(tmp_path):
    store = f"sqlite:///{tmp_path}/tools.db"
    with FakeOpenAI(["Hello, Ann.", "You are Ann."]) as fake, serving(fake, "--store", store) as server:
        with server.session(query=f"output=text&{QUERY}") as client:
            assert "Hello, Ann." == client.answer("I am Ann.")
        with server.session(query=f"output=text&{QUERY}") as client:
            assert 2 == client.frames[0]["history"]
            assert "You are Ann." == client.answer("Who am I?")
        said = str([frame for connection, frame in fake.frames if connection == fake.connections])
        assert "I am Ann." in said
        assert "Hello, Ann." in said
    assert ([], []) == (fake.violations, fake.unanswered)


def test_resume_needs_a_session_and_a_store(shared):
    assert (4400, "invalid_request") == shared.refused(query="resume=1")[::2]
    assert (4400, "invalid_request") == shared.refused(query=QUERY)[::2]
