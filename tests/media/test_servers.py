"""Files of results at the entry points: callbacks over HTTP, agents with their log, the seeds' tools API."""

from __future__ import annotations

import base64
import json

import pytest

from agents.turns import Chat, agent, said_to
from media.pictures import png
from patchbay.agents import Blob
from patchbay.hooks import HookManager, Respond
from patchbay.loop.conversation import LEFT_OUT
from patchbay.server import Governance, GovernanceSettings, ToolsSettings, create_tools_app
from patchbay.testing import ScriptedModel
from patchbay.tools.output import introduction
from patchbay.types import ToolCall
from tools_server.rig import calling_back, json_response, serving

IMAGE = png(filler=4000)
CODE = base64.b64encode(IMAGE).decode()
URL = f"data:image/png;base64,{CODE}"


def test_callback_with_an_image_returns_its_output():
    body = {"output": {"seen": 1, "screenshot": URL}, "images": [{"data": CODE, "mime_type": "image/png"}]}
    with serving() as server, calling_back(json_response(body)) as callback:
        server.register(callback_url=callback.url)
        answer = server.call()
    assert (True, {"seen": 1, "screenshot": URL}) == (answer["ok"], answer["output"])
    assert answer["content"].startswith('{"seen": 1, "screenshot": "[image:media://')
    assert answer["content"].endswith("(You are not shown attachments of the kind image.)")


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_images_do_not_count_against_the_callback_limit(kind):
    large = base64.b64encode(png(filler=100_000)).decode()
    body = json.dumps({"output": "seen", "images": [{"data": large, "mime_type": "image/png"}] * 2}).encode()
    with serving(max_result_size=50_000) as server, calling_back(json_response(body, kind=kind)) as callback:
        server.register(callback_url=callback.url)
        answer = server.call()
    assert (True, "seen") == (answer["ok"], answer["output"])
    assert "seen\n(You are not shown attachments of the kind image.)" == answer["content"]


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "text/plain"])
def test_long_result_with_images_is_truncated_with_a_notice(kind):
    with serving(max_result_size=50_000) as server:
        for images in (
            [{"data": CODE * 1000}], [{"vision_prompt": CODE * 30}], CODE * 20
        ):  # fmt: skip
            body = json.dumps({"images": images, "output": "x"}).encode()
            with calling_back(json_response(body, kind=kind)) as callback:
                server.register(callback_url=callback.url)
                answer = server.call()
            assert answer["output"].endswith("[... cut here: the callback's answer is larger than 50000 bytes ...]")
            assert "characters of base64 are left out: the rest is missing]" in answer["output"]
            assert len(answer["content"]) < 1000


def test_hook_answer_for_a_registered_tool_is_text():
    class Answers:
        async def before_tool(self, call):
            return Respond("sunny")

    hooks = HookManager()
    hooks.mount("answers", Answers())
    app = create_tools_app(("ann",), settings=ToolsSettings(lease=0.0), governance=Governance(GovernanceSettings(), hooks=hooks))
    with serving(app=app) as server, calling_back(json_response({})) as callback:
        server.register(callback_url=callback.url)
        answer = server.call()
    assert ("sunny", "sunny", []) == (answer["output"], answer["content"], callback.calls)


@pytest.mark.parametrize("kinds", [[], ["image"]])
async def test_base64_image_of_an_agents_tool_is_an_image_now_and_a_note_in_later_turns(kinds):
    def look() -> dict:
        """Look."""
        return {"image": URL}

    model = ScriptedModel([[ToolCall("1", "look")], "done", "again"])
    chat = Chat(agent(model, look, attachments=kinds))
    await chat.say()
    shown = said_to(model)
    assert CODE not in shown[2]["content"]
    images = [part for part in shown[-1]["content"] if part["type"] == "image_url"] if kinds else []
    assert [URL] * len(kinds) == [part["image_url"]["url"] for part in images]
    session = await chat.session()
    parts = [part for event in session.events if event.content for part in event.content.parts]
    assert [Blob("image/png", IMAGE)] * len(kinds) == [part.inline_data for part in parts if part.inline_data]
    assert all(CODE not in json.dumps(part.function_response.response) for part in parts if part.function_response)
    await chat.say("more")
    if kinds:
        shown[-1] = {"role": "user", "content": f"{introduction(1, '1')}\n{LEFT_OUT}"}
    assert [*shown, {"role": "assistant", "content": "done"}, {"role": "user", "content": "more"}] == said_to(model)
