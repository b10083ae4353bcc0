"""The fakes behave like the real servers: the providers' SDKs talk with them and accept each of their frames."""

from __future__ import annotations

import json
import typing

import openai
import pytest
from google import genai
from google.genai import live, types
from openai.types.realtime import RealtimeServerEvent
from websockets.asyncio.client import connect

from patchbay.realtime import RealtimeSession, connection
from patchbay.testing.realtime import Call, FakeOpenAI, Faults, Quote
from realtime.random_scripts import random_script
from support.realtime_fakes import FakeGemini
from support.running import run

from .raw import FLAT, PARAMETERS

EVENTS = {
    typing.get_args(model.model_fields["type"].annotation)[0]: model
    for model in typing.get_args(typing.get_args(RealtimeServerEvent)[0])
}
"""The SDK's models of server events, by type."""


KNOWN = {
    "RealtimeSessionCreateRequest": {"id", "object"},  # it takes the model of a client's session for that of a server's event
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},  # its older versions
}
"""Members that the SDK's models lack."""


def unknown_members(value) -> list[str]:
    """Members of a frame that its model does not declare: OpenAI's SDK accepts any."""
    if isinstance(value, list):
        return [name for each in value for name in unknown_members(each)]
    if not isinstance(value, openai.BaseModel):
        return []
    known = KNOWN.get(type(value).__name__, set())
    strange = [f"{type(value).__name__}.{name}" for name in value.model_extra or () if name not in known]
    return strange + [name for field in type(value).model_fields for name in unknown_members(getattr(value, field))]


def test_the_openai_sdk_talks_with_the_fake_and_has_a_tool_called():
    async def talk(fake: FakeOpenAI) -> str:
        client = openai.AsyncOpenAI(api_key="k", websocket_base_url=f"ws://{fake.address}/v1")
        async with client, client.realtime.connect(model="gpt-realtime") as connection:
            await connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "tools": [FLAT]})
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "The weather in Rome?"}]}
            await connection.conversation.item.create(item=item)
            await connection.response.create()
            text = ""
            async for event in connection:
                if event.type == "response.output_text.delta":
                    text += event.delta
                elif event.type == "response.done":
                    calls = [item for item in event.response.output if item.type == "function_call"]
                    if not calls:
                        return text
                    assert ("get_weather", {"city": "Rome"}) == (calls[0].name, json.loads(calls[0].arguments))
                    output = {"type": "function_call_output", "call_id": calls[0].call_id, "output": "22 degrees"}
                    await connection.conversation.item.create(item=output)
                    await connection.response.create()
        raise AssertionError("the connection ended")

    with FakeOpenAI([Call("get_weather", {"city": "Rome"}), Quote()], api_key="k") as fake:
        assert "I was told: 22 degrees" == run(talk(fake))
        assert [] == fake.violations
        assert [] == fake.unanswered
        assert [] == fake.unasked
        assert ["22 degrees"] == fake.results(fake.calls[0].call_id)


@pytest.fixture
def plain_sockets(monkeypatch):
    """Let google-genai connect without TLS: with an API key it makes ``wss`` of any base URL."""
    monkeypatch.setattr(
        live,
        "ws_connect",
        lambda uri, **options: connect(uri.replace("wss://", "ws://"), additional_headers=options["additional_headers"]),
    )


def test_the_google_sdk_talks_with_the_fake_and_has_tools_called(plain_sockets):
    declaration = {"name": "get_weather", "description": "The weather.", "parameters_json_schema": PARAMETERS}
    config = {"response_modalities": ["AUDIO"], "tools": [{"function_declarations": [declaration]}]}
    config |= {"output_audio_transcription": {}, "system_instruction": "Be brief."}

    async def talk(fake: FakeGemini) -> tuple[str, bytes]:
        options = types.HttpOptions(base_url=f"http://{fake.address}", api_version="v1alpha")
        client = genai.Client(api_key="k", http_options=options)
        text, audio = "", b""
        async with client.aio.live.connect(model="gemini-live", config=config) as session:
            turn = types.Content(role="user", parts=[types.Part(text="The weather in Rome and Zürich?")])
            await session.send_client_content(turns=turn, turn_complete=True)
            async for message in session.receive():
                if message.tool_call:
                    calls = message.tool_call.function_calls
                    await session.send_tool_response(
                        function_responses=[
                            types.FunctionResponse(id=call.id, name=call.name, response={"in": call.args["city"]})
                            for call in calls
                        ]
                    )
                if message.server_content and message.server_content.output_transcription:
                    text += message.server_content.output_transcription.text
                if message.server_content and message.server_content.model_turn:
                    audio += message.data
        await client.aio.aclose()
        client.close()
        return text, audio

    cities = [Call("get_weather", {"city": "Rome"}), Call("get_weather", {"city": "Zürich"})]
    with FakeGemini([cities, Quote()], api_key="k", faults=Faults()) as fake:
        text, audio = run(talk(fake))
        assert 'I was told: {"in": "Rome"} | {"in": "Zürich"}' == text
        assert 0 < len(audio) == 480 * len(text)
        assert [] == fake.violations
        assert [] == fake.unanswered
        assert ["get_weather"] == fake.tools


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("provider", [FakeOpenAI, FakeGemini])
async def test_sdks_accept_all_frames_of_random_scripts(provider, seed, monkeypatch):
    """Without deliberate faults: noise, and ends of calls that lack a name or an id."""
    frames: list[dict] = []

    def decoded(data: bytes) -> dict:
        frames.append(json.loads(data))
        return frames[-1]

    monkeypatch.setattr(connection, "_decode", decoded)
    fine = frozenset({"mixed", "fragments", "status", "interrupt", "cancel", "leave", "late"})
    script, _ = random_script(seed, provider=provider, late=0.001, kinds=fine)
    with provider(script, crossing=10.0) as fake:
        session = RealtimeSession("m", provider=fake.provider, url=fake.url, api_key="k", output=("audio", "text")[seed % 2])
        async with session:
            for text in ("one", "two", "three"):
                await session.send_text(text)
                async for event in session.events():
                    if event.type == "idle":
                        break
    assert frames
    for frame in frames:
        if provider is FakeGemini:
            types.LiveServerMessage.model_validate(frame)  # it allows no member that it does not know
        else:
            assert [] == unknown_members(EVENTS[frame["type"]].model_validate(frame, strict=True)), frame
