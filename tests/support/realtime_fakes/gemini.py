"""FakeGemini: Gemini's Live API."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, TypeAlias

from typing_extensions import override
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request

from patchbay.testing.realtime.fake import FakeRealtime
from patchbay.testing.realtime.records import FakeState, Issued, unnamed
from patchbay.testing.realtime.script import Call
from patchbay.testing.realtime.session import ActiveResponse, Cut, FakeConnection

USAGE: Final[Message] = {"usageMetadata": {"promptTokenCount": 12, "responseTokenCount": 8, "totalTokenCount": 20}}


def content_frame(**members: Any) -> Message:
    """Return a message of the model."""
    return {"serverContent": members}


def cancellation_frame(call_ids: Iterable[str]) -> Message:
    """Return the message that cancels calls."""
    return {"toolCallCancellation": {"ids": list(call_ids)}}


def interrupted_frames() -> list[Message]:
    """Return the end of a turn that is interrupted."""
    return [content_frame(interrupted=True), content_frame(turnComplete=True)]


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def _object(text: str) -> Any:
    """Return arguments as a value: here they cannot be invalid JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return {"_raw": text}


Message: TypeAlias = dict[str, Any]

_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_SETUP = frozenset(
    {"model", "generationConfig", "systemInstruction", "tools", "realtimeInputConfig", "sessionResumption", "labels"}
    | {"contextWindowCompression", "inputAudioTranscription", "outputAudioTranscription", "proactivity", "explicitVadSignal"}
    | {"historyConfig", "avatarConfig", "safetySettings", "translationConfig"}
)


def camel(value: Any, *, depth: int = 3) -> Any:
    """Return a message with its members in camelCase, down to ``depth``; deeper members are the user's."""
    if isinstance(value, list):
        return [camel(each, depth=depth) for each in value]
    if not isinstance(value, dict) or not depth:
        return value
    return {
        re.sub(r"_([a-z])", lambda found: found[1].upper(), key): each if key in _FREE else camel(each, depth=depth - 1)
        for key, each in value.items()
    }


_FREE = frozenset({"response", "args", "parameters", "parametersJsonSchema", "parameters_json_schema"})
"""Members with user data, which is kept as it is."""


def declared(setup: Message) -> list[Message]:
    """Return the functions that a setup declares."""
    tools = [tool for tool in setup.get("tools") or () if isinstance(tool, dict)]
    return [each for tool in tools for each in tool.get("functionDeclarations") or tool.get("function_declarations") or ()]


def setup_problem(setup: Message) -> str:
    """Return the problem of a setup, "" if it is valid."""
    if not setup.get("model"):
        return "setup without a model"
    if unknown := sorted(set(setup) - _SETUP):
        return f"Unknown name {unknown[0]!r} at 'setup'"
    if any(not isinstance(tool, dict) or "type" in tool or "name" in tool for tool in setup.get("tools") or ()):
        return "setup.tools are not functionDeclarations"
    seen: set[str] = set()
    for number, each in enumerate(declared(setup)):
        name = each.get("name")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            return f"setup.tools[0].function_declarations[{number}].name: Invalid function name {name!r}"
        if name in seen:
            return f"Duplicate function declaration found: {name}"
        seen.add(name)
        if "parameters" in each and (bad := _foreign(each["parameters"])):
            return f"Unknown name {bad!r} at 'setup.tools[0].function_declarations[{number}].parameters'"
    return ""


_SCHEMA = frozenset(
    {"type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required", "items"}
    | {"minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering", "default"}
    | {"minimum", "maximum", "additionalProperties", "$ref", "$defs", "ref", "defs"}
)


def _foreign(schema: Any) -> str:
    """Return a member of a schema that ``parameters`` does not accept, "" if there is none: with one, the whole session fails."""
    if not isinstance(schema, dict):
        return repr(schema)
    for key, value in schema.items():
        if key not in _SCHEMA:
            return str(key)
        inner: list[Any] = []
        if key == "properties" and isinstance(value, dict):
            inner = list(value.values())
        elif key == "items":
            inner = [value]
        elif key == "anyOf":
            inner = list(value)
        elif key == "type" and not isinstance(value, str):
            return "type"
        for each in inner:
            if bad := _foreign(each):
                return bad
    return ""


_CLIENT = frozenset({"setup", "clientContent", "realtimeInput", "toolResponse"})


class GeminiConnection(FakeConnection):
    """A connection to a fake of Gemini Live."""

    fake: FakeGemini

    def __init__(self, fake: FakeState, socket: ServerConnection, number: int) -> None:
        super().__init__(fake, socket, number)
        self.setup: Message | None = None
        self._history: Literal["none", "announced", "received"] = "none"

    async def handle_frame(self, frame: dict[str, Any]) -> None:
        """Handle a message of the client."""
        message = camel(frame)
        kinds = sorted(set(message) & _CLIENT)
        if len(message) != 1 or len(kinds) != 1:
            await self._refuse(f"a message with {', '.join(sorted(message)) or 'nothing'}", "Invalid JSON payload received.")
            return
        kind = kinds[0]
        body = message[kind]
        if not isinstance(body, dict):
            await self._refuse(f"{kind} is not an object", "Invalid JSON payload received.")
        elif kind == "setup":
            await self._set_up(body)
        elif self.setup is None:
            await self._refuse(f"{kind} before setup", "setup must be the first message and only the first.")
        elif kind == "clientContent":
            await self._content(body)
        elif self._history == "announced":
            await self._refuse(f"{kind} before the history that was announced", "Request contains an invalid argument.")
        elif kind == "realtimeInput":
            await self._input(body)
        else:
            await self._results(body)

    async def _refuse(self, what: str, reason: str, *, code: int = 1007) -> None:
        self.violate(what)
        self.fake.refusals.append(str(code))
        await self.socket.close(code, reason)

    # Setup

    async def _set_up(self, setup: Message) -> None:
        self.fake.sessions.append(setup)
        if self.setup is not None:
            what = "tools after setup" if "tools" in setup else "a second setup"
            await self._refuse(what, "setup must be the first message and only the first.")
            return
        problem = setup_problem(setup)
        if problem:
            await self._refuse(problem, problem)
            return
        outcome = self.fake.next_update()
        if outcome == "refuse":
            self.fake.refusals.append("1007")
            await self.socket.close(1007, "Request contains an invalid argument.")
            return
        self.setup = setup
        if (setup.get("historyConfig") or {}).get("initialHistoryInClientContent"):
            self._history = "announced"
        self.fake.tools = [each["name"] for each in declared(setup)]
        if outcome != "silent":
            await self.send({"setupComplete": {"sessionId": self.fake.new_id("session")}})

    def on_closed(self) -> None:
        """Expect no results of the calls of this connection."""
        for call in self._waiting():
            self.fake.void(call, f"call of connection {self.number}, which is gone")

    # Input

    async def _content(self, body: Message) -> None:
        if self.fake.newer and self._history != "announced":
            await self._refuse("clientContent that is not a history", "Request contains an invalid argument.")
            return
        for turn in body.get("turns") or ():
            texts = [part.get("text", "") for part in (turn.get("parts") or ()) if isinstance(part, dict)]
            role = {"model": "assistant"}.get(turn.get("role", "user"), turn.get("role", "user"))
            if role not in ("user", "assistant"):
                await self._refuse(f"a turn of the role {role!r}", "Please use a valid role: user, model.")
                return
            self.add_input(role, "".join(texts))
        if not body.get("turnComplete"):
            return
        if self._history == "announced":
            self._history = "received"
        else:
            await self._user_is_done()

    async def _input(self, body: Message) -> None:
        blobs = [body[name] for name in ("audio", "video") if name in body] + list(body.get("mediaChunks") or ())
        for blob in blobs:
            try:
                data = base64.urlsafe_b64decode(str(blob["data"]).replace("+", "-").replace("/", "_"))
            except (KeyError, TypeError, ValueError):
                await self._refuse("audio that is not base64", "Request contains an invalid argument.")
                return
            await self.receive_audio(data)
        if isinstance(body.get("text"), str):
            self.add_input("user", body["text"])
            await self._user_is_done()
        elif (body.get("audioStreamEnd") or "activityEnd" in body) and self.buffered:
            await self.user_speaks(self.fake.next_utterance())

    async def _user_is_done(self) -> None:
        await self._interrupt()
        self.respond(asked=False)

    async def _interrupt(self) -> None:
        await self.cut("turn_detected")
        await self._void(self._waiting())

    async def _void(self, calls: Sequence[Issued]) -> None:
        """Cancel calls. Those without an id cannot be cancelled by it: they may be answered."""
        for call in calls:
            if not call.sent_id and call.wanted == "must":
                call.wanted = "may"
                call.why = "interrupted"
        if sent := [call.call_id for call in calls if call.sent_id]:
            await self.withdraw_calls(sent)

    async def user_speaks(self, text: str) -> None:
        """The user speaks: calls without a result are cancelled. Ignored before the setup."""
        if self.setup is None:
            return
        await self._interrupt()
        await super().user_speaks(text)

    def speech_frames(self, text: str) -> tuple[list[Message], list[Message]]:
        """Return the transcript, if the setup requests one."""
        heard = content_frame(inputTranscription={"text": text, "finished": True})
        return [], [heard] if self.setup is not None and "inputAudioTranscription" in self.setup else []

    # Results

    def _waiting(self) -> list[Issued]:
        return [call for call in self.calls.open if call.wanted == "must"]

    async def _results(self, body: Message) -> None:
        responses = body.get("functionResponses") or []
        if not responses:
            await self._refuse("a toolResponse without results", "Request contains an invalid argument.")
        last: Issued | None = None
        nameless = self._meant([each.get("name") for each in responses if not each.get("id")])
        for each in responses:
            if not isinstance(each.get("response"), dict):
                await self._refuse(
                    f"the response of {each.get('name')!r} is not an object", "Invalid value at 'response' (Struct)"
                )
                return
            call = self.calls.find(each.get("id")) or unnamed(one for one in nameless if one.name == each.get("name"))
            output = _text(each["response"])
            call_id = str(each.get("id") or "")
            if not self.fake.record_result(self.number, call, call_id, output, among=self.calls) or call is None:
                continue
            if each.get("name") not in (None, "", call.name):
                self.violate(f"result for {call.call_id!r} as one of {each['name']!r}, which is {call.name!r}")
            self.add_input("result", output, call.call_id)
            await self.on_result(call)
            last = call
        if last is not None and not any(call.open and call.wanted != "not" for call in self.calls.of(last.response_id)):
            self.respond(asked=False)

    def _meant(self, names: Sequence[Any]) -> Sequence[Issued]:
        """Return the calls that results without ids may be for: those of the response whose open calls have these names.

        Results that cross with an interruption and with later calls are matched to the older ones by that alone.
        """
        waiting = [call for call in self.calls.open if not call.sent_id and call.wanted != "not"]
        batches = [list(calls) for _, calls in itertools.groupby(waiting, key=lambda call: call.response_id)]
        fitting = [batch for batch in batches if [call.name for call in batch] == names]
        return next((batch for batch in fitting if batch[0].wanted == "must"), next(iter(fitting), waiting))

    # Answers

    @property
    def speaks(self) -> bool:
        """True if the model answers with audio."""
        config = (self.setup or {}).get("generationConfig") or {}
        return "AUDIO" in (config.get("responseModalities") or ["AUDIO"])

    @property
    def detects_turns(self) -> bool:
        """True if the server detects the end of the user's turn."""
        config = (self.setup or {}).get("realtimeInputConfig") or {}
        return not (config.get("automaticActivityDetection") or {}).get("disabled")

    @override
    def say_frames(self, playing: ActiveResponse, text: str, audio: bytes, piece: int) -> list[Message]:
        """Return a text as parts, or audio in as many pieces, then its transcript if the setup requests one."""
        pieces = _pieces(text, piece)
        if not self.speaks:
            return [content_frame(modelTurn={"role": "model", "parts": [{"text": each}]}) for each in pieces]
        size = max(2, len(audio) // max(1, len(pieces)) // 2 * 2)
        messages: list[Message] = []
        for start in range(0, len(audio), size):
            data = base64.b64encode(audio[start : start + size]).decode()
            blob = {"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": data}}
            messages.append(content_frame(modelTurn={"role": "model", "parts": [blob]}))
        transcribed = "outputAudioTranscription" in (self.setup or {})
        return messages + ([content_frame(outputTranscription={"text": each}) for each in pieces] if transcribed else [])

    @override
    def call_frames(self, playing: ActiveResponse, calls: Sequence[tuple[Call, Issued]]) -> list[Message]:
        """Return one message with all calls, repeated for a duplicate. A call without an id is recorded as such."""
        listed: list[Message] = []
        for call, issued in calls:
            each = {"name": call.name, "args": _object(call.text)}
            if "no_call_id" in call.faults or not issued.call_id:
                issued.sent_id = ""
            else:
                each = {"id": issued.call_id, **each}
            listed.append(each)
        message = {"toolCall": {"functionCalls": listed}}
        return [message] * (2 if any("done_twice" in call.faults for call, _ in calls) else 1)

    def on_send(self, playing: ActiveResponse, frame: Mapping[str, Any]) -> None:
        """Expect results of the calls from now on."""
        if "toolCall" in frame:
            for call in playing.calls:
                call.wanted = "must"

    @override
    def stale_frames(self, playing: ActiveResponse) -> list[Message]:
        """Return a cancellation of unknown calls."""
        return [cancellation_frame(["call_of_old"])]

    def end_frames(self, playing: ActiveResponse) -> list[Message]:
        """Return the end of the turn; nothing after calls, since the turn continues with their results."""
        status = playing.status or "completed"
        if playing.calls and status == "completed":
            return []
        if status == "completed":
            head = [content_frame(generationComplete=True)]
        else:
            head = [content_frame(interrupted=True)] if status == "cancelled" else []
        reason = {} if status in ("completed", "cancelled") else {"turnCompleteReason": "RESPONSE_REJECTED"}
        return [*head, {**content_frame(turnComplete=True, **reason), **USAGE}]

    async def on_response_ended(self, playing: ActiveResponse) -> None:
        """Cancel the calls of an incomplete response."""
        if playing.status != "completed":
            await self._void(playing.calls)

    @override
    async def on_calls_withdrawn(self) -> None:
        """End the turn if no call of it is left, continue if all of them have results now."""
        playing = self.playing
        if playing is None or any(call.open and call.wanted != "not" for call in playing.calls):
            return
        if any(call.results and call.wanted != "not" for call in playing.calls):
            self.respond(asked=False)
        elif playing.over:
            await self.send_all(interrupted_frames())

    @override
    def cut_frames(self, playing: ActiveResponse, why: Cut) -> list[Message]:
        """Return the interruption of the turn."""
        for call in playing.calls:
            if call.wanted != "must":
                self.fake.void(call, "never sent")
        return interrupted_frames()

    def cancel_frames(self, calls: Sequence[Issued]) -> list[Message]:
        """Return the cancellation of calls."""
        return [cancellation_frame(call.call_id for call in calls)]

    def leave_frames(self, seconds: float) -> list[Message]:
        """Return ``goAway``."""
        return [{"goAway": {"timeLeft": f"{seconds:g}s"}}]

    def noise_frames(self) -> list[Message]:
        """Return messages without effect."""
        return [USAGE, {"unheardOf": {"ever": [1]}}]


class FakeGemini(FakeRealtime):
    """The Gemini Live API, at ``v1alpha`` and ``v1beta``.

    ``newer``: behave like the models of 2026, which take texts as ``realtimeInput``, and ``clientContent`` only as a history that
    the setup has announced.
    """

    provider = "gemini"
    path = "/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent"
    other_paths: ClassVar[tuple[str, ...]] = ("/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent",)
    _connection_class = GeminiConnection

    def __init__(self, *arguments: Any, newer: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.newer = newer

    def serves(self, path: str) -> bool:
        """True if the WebSocket is at ``path``."""
        return path in (self.path, *self.other_paths)

    def key(self, request: Request, query: Mapping[str, list[str]]) -> str:
        """Return the key that a client has sent, as a header or in the URL."""
        return request.headers.get("x-goog-api-key") or query.get("key", [""])[0]


def _text(response: Message) -> str:
    return json.dumps(response, ensure_ascii=False)
