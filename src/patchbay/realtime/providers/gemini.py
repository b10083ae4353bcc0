"""Gemini Live: one ``setup`` per connection; turns without ids that continue after tool results.

Responses get generated ids: a response lasts from the model's first output until its turn ends or it calls tools. So do calls
without an id. Frames are read in camelCase, and in snake_case as some proxies write them.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Any, ClassVar, Final
from uuid import uuid4

from patchbay.realtime.call_assembly import MAX_CALLS
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers import json_access
from patchbay.realtime.providers.base import CallResult, ConnectionSetup, Dialect, Frame, Line, WireTool
from patchbay.realtime.server_events import (
    AudioDelta,
    CallDelta,
    CallsCancelled,
    GoAway,
    InputTranscript,
    ResponseDone,
    ResponseStarted,
    ServerError,
    ServerEvent,
    SessionOpened,
    SpeechStarted,
    Status,
    TextDelta,
)
from patchbay.schema.dialects import DIALECTS

_LONGEST: Final = 86_400.0
_MOST_DIGITS: Final = 32


def _snake(name: str) -> str:
    return re.sub("([A-Z])", lambda found: f"_{found[1].lower()}", name)


_SNAKE: Final[Mapping[str, str]] = {
    name: _snake(name)
    for name in (
        *("setupComplete", "serverContent", "toolCall", "toolCallCancellation", "usageMetadata", "goAway", "timeLeft"),
        *("modelTurn", "inlineData", "mimeType", "turnComplete", "turnCompleteReason"),
        *("inputTranscription", "outputTranscription"),
    )
}


def _value(holder: dict[str, Any], name: str) -> Any:
    """Return a member by its camelCase or snake_case name, None if missing."""
    found = holder.get(name)
    return holder.get(_SNAKE.get(name, name)) if found is None else found


def _has(holder: dict[str, Any], name: str) -> bool:
    return isinstance(_value(holder, name), dict)


def _member(holder: dict[str, Any], name: str) -> dict[str, Any]:
    found = _value(holder, name)
    return found if isinstance(found, dict) else {}


def _text(holder: dict[str, Any], name: str) -> str:
    return json_access.text(holder, name) or json_access.text(holder, _SNAKE.get(name, name))


def _strings(holder: dict[str, Any], name: str) -> tuple[str, ...]:
    found = holder.get(name)
    return tuple(one for one in found if isinstance(one, str) and one) if isinstance(found, list) else ()


def _seconds(duration: Any) -> float:
    """Parse a protobuf duration such as "9.5s"; 0.0 if invalid."""
    if isinstance(duration, dict):
        duration = duration.get("seconds")
    if isinstance(duration, bool) or not isinstance(duration, int | float | str):
        return 0.0
    try:
        found = float(duration[:_MOST_DIGITS].rstrip("s") if isinstance(duration, str) else duration)
    except (ValueError, OverflowError):
        return 0.0
    return min(max(found, 0.0), _LONGEST) if math.isfinite(found) else 0.0


_GENERATION: Final = re.compile(r"gemini-(?:live-)?(\d{1,4})")
_NEWER: Final = 3
_HISTORY: Final = "historyConfig"
_ANNOUNCED: Final = "initialHistoryInClientContent"


def text_protocol_for(settings: RealtimeSettings, model: str) -> ContentTextProtocol | RealtimeTextProtocol:
    """Choose by the generation in the model's name, or by a history announced in ``extra``."""
    found = _GENERATION.search(model)
    announced = json_access.member(dict(settings.extra), _HISTORY).get(_ANNOUNCED) is True
    return RealtimeTextProtocol() if announced or (found is not None and int(found[1]) >= _NEWER) else ContentTextProtocol()


class ContentTextProtocol:
    """Text of older models, by ``clientContent``: conversation turns at any time, of which a complete one is answered."""

    def __init__(self) -> None:
        self._turn_open = False

    def setup_fields(self, lines: Sequence[Line]) -> dict[str, Any]:  # noqa: ARG002  (see RealtimeTextProtocol)
        """Return members of the setup that announce a replay of ``lines``: none."""
        return {}

    def history_frames(self, lines: Sequence[Line]) -> list[Frame]:
        """All lines in one frame."""
        self._turn_open = bool(lines)
        return [_content(lines, complete=False)] if lines else []

    def text_frames(self, line: Line, *, answer: bool) -> list[Frame]:
        """One turn, complete if an answer is wanted."""
        self._turn_open = not answer
        return [_content([line], complete=answer)]

    def response_frames(self) -> list[Frame]:
        """Complete the open turn."""
        owes, self._turn_open = self._turn_open, False
        return [{"clientContent": {"turnComplete": True}}] if owes else []

    def on_results(self) -> None:
        """The open turn goes with the results."""
        self._turn_open = False


class RealtimeTextProtocol:
    """Text of newer models, by ``realtimeInput``: answered at once; turns are only for a history that the setup announced.

    So a line without an answer is held back until the next one with an answer.
    """

    def __init__(self) -> None:
        self._history_announced = False
        self._unsent: list[str] = []

    def setup_fields(self, lines: Sequence[Line]) -> dict[str, Any]:
        """Announce a history only if there is one: the server waits for it."""
        self._history_announced = any(line.role == "assistant" for line in lines)
        return {_HISTORY: {_ANNOUNCED: True}} if self._history_announced else {}

    def history_frames(self, lines: Sequence[Line]) -> list[Frame]:
        """Send lines up to the model's last as history; the rest is still to be answered."""
        last = max((number for number, line in enumerate(lines, 1) if line.role == "assistant"), default=0)
        history, rest = (lines[:last], lines[last:]) if self._history_announced else ((), lines)
        self._unsent += [line.text for line in rest]
        return [_content(history, complete=True)] if self._history_announced else []

    def text_frames(self, line: Line, *, answer: bool) -> list[Frame]:
        """Send the line with all that was held back."""
        self._unsent.append(line.text)
        return self.response_frames() if answer else []

    def response_frames(self) -> list[Frame]:
        """Send what was held back."""
        text = "\n\n".join(self._unsent)
        self._unsent.clear()
        return [{"realtimeInput": {"text": text}}] if text else []

    def on_results(self) -> None:
        """Nothing: held-back lines are no part of the results."""


def _content(lines: Sequence[Line], *, complete: bool) -> Frame:
    turns = [{"role": "model" if line.role == "assistant" else "user", "parts": [{"text": line.text}]} for line in lines]
    return {"clientContent": {"turns": turns, "turnComplete": complete}}


_MADE: Final = "gemini_made_here_"
_KNOWN: Final = 1_024
_OUTPUT_RATE: Final = 24_000
_PCM: Final = re.compile(r"audio/(?:pcm|l16)\b", re.IGNORECASE)
_RATE: Final = re.compile(r";\s*rate=(\d{1,6})\b", re.IGNORECASE)
_LONGEST_UTTERANCE: Final = 32_768
_MOST_MIME: Final = 100


class GeminiDialect(Dialect):
    """One connection to Gemini Live."""

    provider: ClassVar[str] = "gemini"
    other_names: ClassVar[tuple[str, ...]] = ("google",)
    hosts: ClassVar[tuple[str, ...]] = ("generativelanguage.googleapis.com",)
    tools: ClassVar = DIALECTS["gemini_live"]
    default_url: ClassVar[str] = (
        "wss://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1alpha.GenerativeService.BidiGenerateContent"
    )
    key_variables: ClassVar[tuple[str, ...]] = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
    input_rate: ClassVar[int] = 16_000
    updates_tools: ClassVar[bool] = False
    continues_unprompted: ClassVar[bool] = True

    def __init__(self, settings: RealtimeSettings) -> None:
        super().__init__(settings)
        self._tag = uuid4().hex
        self._numbers = count()
        self._set_up = False
        self._streaming = False
        self._texts = text_protocol_for(settings, self.model)
        self._response = ""
        """The response in progress, "" if none."""
        self._last = ""
        self._ended_before_turn = False
        """True if the response ended before its turn, whose end is then ignored."""
        self._was_interrupted = False
        """True if that was by an interruption."""
        self._answered = False
        """True if no input was sent since the last response."""
        self._pending_requests = 0
        """Requests since the last response."""
        self._waiting: list[tuple[str, str, str | None]] = []
        """The last calls, until their results are sent."""
        self._unnamed: list[str] = []
        """Generated ids of those without one."""
        self._known: OrderedDict[str, None] = OrderedDict()
        """Ids of calls that were emitted."""
        self._usage: dict[str, Any] = {}
        self._utterance: list[str] = []
        self._uttered = 0

    # Sending

    def url(self) -> str:
        """The URL does not name the model."""
        return self.settings.url or self.default_url

    def headers(self, api_key: str) -> dict[str, str]:
        """The key as a header: in the URL it would be logged."""
        return {"x-goog-api-key": api_key} if api_key else {}

    def setup_frames(self, opening: ConnectionSetup) -> list[Frame]:
        """The ``setup`` with the whole configuration."""
        settings = self.settings
        extra = dict(settings.extra)
        own = extra.pop("tools", None)  # the provider's own tools precede ours
        extra.pop("historyConfig", None)  # announced only with a history
        generation: dict[str, Any] = {"responseModalities": [settings.output.upper()]}
        if settings.voice is not None:
            generation["speechConfig"] = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": settings.voice}}}
        setup: dict[str, Any] = {
            "model": self.model if "/" in self.model else f"models/{self.model}",
            "generationConfig": generation,
            # Without it an audio session ends after 15 minutes.
            "contextWindowCompression": {"slidingWindow": {}},
            **self._texts.setup_fields(opening.lines),
        }
        if settings.instructions:
            setup["systemInstruction"] = {"parts": [{"text": settings.instructions}], "role": "user"}
        if settings.transcribe:
            setup["inputAudioTranscription"] = {}
        if settings.output == "audio":
            setup["outputAudioTranscription"] = {}
        if not settings.detect_turns:
            setup["realtimeInputConfig"] = {"automaticActivityDetection": {"disabled": True}}
        setup = json_access.merged(setup, extra)
        tools = [{"functionDeclarations": [*opening.tools]}] if opening.tools else []
        if tools or own:
            setup["tools"] = [*(own if isinstance(own, Sequence) and not isinstance(own, str) else ()), *tools]
        return [{"setup": setup}]

    def configure_frames(self, opening: ConnectionSetup) -> list[Frame]:  # noqa: ARG002  (part of the setup)
        """Nothing: the setup did it."""
        return []

    def tools_frames(self, tools: Sequence[WireTool]) -> list[Frame]:  # noqa: ARG002  (not supported)
        """Nothing: tools need another connection (``updates_tools``)."""
        return []

    def history_frames(self, opening: ConnectionSetup) -> list[Frame]:
        """Replay the lines without an answer."""
        return self._texts.history_frames(opening.lines)

    def text_frames(self, line: Line, *, answer: bool) -> list[Frame]:
        """One line, completed if an answer is wanted."""
        return self._record_input(self._texts.text_frames(line, answer=answer), asks=answer)

    def _record_input(self, frames: list[Frame], *, asks: bool = True) -> list[Frame]:
        """Record that input is sent; ``asks``: the model will answer it."""
        if frames:
            self._ended_before_turn = self._was_interrupted  # an interrupted turn still sends its end
            self._answered = False
            self._pending_requests += asks
        return frames

    def audio_frames(self, audio: bytes) -> list[Frame]:
        """One chunk; without server turn detection preceded by the start of the activity."""
        blob = {"data": base64.b64encode(audio).decode(), "mimeType": f"audio/pcm;rate={self.input_rate}"}
        piece: Frame = {"realtimeInput": {"audio": blob}}
        self._answered = False
        starts = not self._streaming and not self.settings.detect_turns
        self._streaming = True
        return [{"realtimeInput": {"activityStart": {}}}, piece] if starts else [piece]

    def audio_end_frames(self) -> list[Frame]:
        """End the activity, or the stream if the server detects turns."""
        if not self._streaming:
            return []
        self._streaming = False
        end: dict[str, Any] = {"audioStreamEnd": True} if self.settings.detect_turns else {"activityEnd": {}}
        return self._record_input([{"realtimeInput": end}])

    def result_frames(self, results: Sequence[CallResult]) -> list[Frame]:
        """All results in one frame; calls without an id are matched by name and order."""
        if not results:
            return []
        self._waiting = []
        self._unnamed = []
        self._texts.on_results()
        return self._record_input([{"toolResponse": {"functionResponses": [_response(result) for result in results]}}])

    def response_frames(self) -> list[Frame]:
        """Have held-back lines answered; after results nothing is needed."""
        return self._record_input(self._texts.response_frames())

    def cancel_frames(self, response_id: str) -> list[Frame]:  # noqa: ARG002  (not supported)
        """Nothing: only user input interrupts the model."""
        return []

    # Reading

    def read(self, frame: Any) -> list[ServerEvent]:
        """Read a frame, which may hold several events. Usage comes first: it belongs to a response that may end here."""
        if not isinstance(frame, dict):
            return []
        self._usage = _member(frame, "usageMetadata") or self._usage
        events: list[ServerEvent] = []
        if _has(frame, "setupComplete"):
            self._set_up = True
            events.append(SessionOpened(configured=True))
        if content := _member(frame, "serverContent"):
            self._content(content, events)
        if call := _member(frame, "toolCall"):
            self._calls(call, events)
        if ids := _strings(_member(frame, "toolCallCancellation"), "ids"):
            events.append(CallsCancelled(ids[:_KNOWN]))
        if _has(frame, "goAway"):
            events.append(GoAway(_seconds(_value(_member(frame, "goAway"), "timeLeft"))))
        if error := _member(frame, "error"):
            events.append(self._refusal(error))
        return events

    def _refusal(self, error: dict[str, Any]) -> ServerError:
        number = json_access.index(error, "code")
        code = _text(error, "status") or ("" if number is None else str(number))
        message = _text(error, "message") or "The server reported an error."
        return ServerError(message, code, about="" if self._set_up else "session")

    def _content(self, content: dict[str, Any], events: list[ServerEvent]) -> None:
        if heard := _member(content, "inputTranscription"):
            self._input_transcript(heard, events)
        for _, part in json_access.elements(_member(content, "modelTurn"), "parts"):
            self._part(part, events)
        if text := _text(_member(content, "outputTranscription"), "text"):
            # Transcripts are not ordered with other frames, and may arrive last.
            late = not self._response and (self._ended_before_turn or self._answered)
            response_id = self._last if late else self._ensure_response(events)
            events.append(TextDelta(response_id, text, spoken=self.settings.output == "audio"))
        if _value(content, "interrupted") is True:
            if not self._response and self._pending_requests == 1:
                self._ensure_response(events)  # the pending request will not be answered: report its end
            self._pending_requests = max(0, self._pending_requests - 1)
            self._cancel_unnamed_calls(events)
            events.append(SpeechStarted())
            if self._response:
                self._end("cancelled", events, reason="interrupted")
            self._ended_before_turn = self._was_interrupted = True  # the end of the turn is still to come
        if _value(content, "turnComplete") is True:
            self._turn_over(_text(content, "turnCompleteReason"), events)

    def _turn_over(self, reason: str, events: list[ServerEvent]) -> None:
        if not self._response and self._ended_before_turn:
            self._ended_before_turn = self._was_interrupted = False
            return
        self._ensure_response(events)  # an empty response still answers a request
        self._end("completed", events, reason=reason)

    def _part(self, part: dict[str, Any], events: list[ServerEvent]) -> None:
        if part.get("thought") is True:
            return
        if text := _text(part, "text"):
            events.append(TextDelta(self._ensure_response(events), text))
        blob = _member(part, "inlineData")
        kind = _text(blob, "mimeType")[:_MOST_MIME]
        if self.settings.output == "audio" and _PCM.match(kind) and (audio := json_access.audio(blob, "data")):
            found = _RATE.search(kind)
            rate = int(found[1]) if found is not None else 0
            events.append(AudioDelta(self._ensure_response(events), audio, rate or _OUTPUT_RATE))

    def _input_transcript(self, heard: dict[str, Any], events: list[ServerEvent]) -> None:
        if not self.settings.transcribe:
            return
        if piece := _text(heard, "text"):
            events.append(InputTranscript(piece, whole=False))
            self._utterance.append(piece)
            self._uttered += len(piece)
        if _value(heard, "finished") is True or self._uttered > _LONGEST_UTTERANCE:
            self._flush_utterance(events)

    def _flush_utterance(self, events: list[ServerEvent]) -> None:
        """Emit the user's utterance. Servers rarely mark its end, so the model's next output counts as the end."""
        if whole := "".join(self._utterance).strip():
            events.append(InputTranscript(whole))
        self._utterance.clear()
        self._uttered = 0

    def _calls(self, batch: dict[str, Any], events: list[ServerEvent]) -> None:
        """Read calls, which end their response."""
        listed = json_access.elements(batch, "functionCalls" if batch.get("functionCalls") else "function_calls")
        calls = [
            (_text(one, "id"), _text(one, "name"), json_access.arguments(one, "args")) for _, one in islice(listed, MAX_CALLS)
        ]
        if calls == self._waiting and not any(call_id for call_id, _, _ in calls):
            return  # repeated: the model waits for the results
        new = [call for call in calls if call[0] not in self._known]
        if new:
            self._cancel_unnamed_calls(events)  # the model has continued without them
        self._waiting = calls
        if not new:
            return
        response_id = self._ensure_response(events)
        for call_id, name, arguments in new:
            if call_id:
                self._known[call_id] = None
            key = call_id or f"{_MADE}{self._tag}_{next(self._numbers)}"
            if not call_id:
                self._unnamed.append(key)
            events.append(CallDelta(response_id, key, key, name, arguments=arguments, done=True))
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        self._end("completed", events)
        self._ended_before_turn = True

    def _cancel_unnamed_calls(self, events: list[ServerEvent]) -> None:
        """Cancel calls without an id, which the server cannot name.

        Their results would be matched by name to the calls that it makes next.
        """
        if self._unnamed:
            events.append(CallsCancelled(tuple(self._unnamed)))
        self._unnamed = []
        self._waiting = []

    def _ensure_response(self, events: list[ServerEvent]) -> str:
        """Return the response in progress, starting one if there is none."""
        if not self._response:
            self._flush_utterance(events)
            self._response = f"gemini-{self._tag}-{next(self._numbers)}"
            self._ended_before_turn = self._was_interrupted = False
            self._pending_requests = 0
            events.append(ResponseStarted(self._response))
        return self._response

    def _end(self, status: Status, events: list[ServerEvent], *, reason: str = "") -> None:
        events.append(ResponseDone(self._response, status, (), self._usage or None, reason))
        self._last, self._response = self._response, ""
        self._answered = True
        self._usage = {}


def _response(result: CallResult) -> dict[str, Any]:
    """Encode a result as an object."""
    try:
        value = json.loads(result.output, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = result.output
    response = {"name": result.name, "response": value if isinstance(value, dict) else {"result": value}}
    return response if result.call_id.startswith(_MADE) else {"id": result.call_id, **response}


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are not JSON
