"""Gemini Live: one ``setup`` for a connection, tools among it; turns without ids, which go on by themselves after results.

What lives here: the wire, but for texts (``geminitexts``). Whatever has no id there gets one of ours: responses, which here are
what the model says from its first word until its turn ends or it calls tools, and calls, where the server names none.
"""

from __future__ import annotations

import base64
import json
import math
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import count, islice
from typing import Any, ClassVar, Final
from uuid import uuid4

from patchbay.realtime.call_assembly import MOST_CALLS
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
    SessionResumption,
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
        *("sessionResumptionUpdate", "newHandle", "modelTurn", "inlineData", "mimeType", "turnComplete", "turnCompleteReason"),
        *("inputTranscription", "outputTranscription"),
    )
}


def _value(holder: dict[str, Any], name: str) -> Any:
    """A member by either name, None where there is none."""
    found = holder.get(name)
    return holder.get(_SNAKE.get(name, name)) if found is None else found


def _has(holder: dict[str, Any], name: str) -> bool:
    """Whether there is such an object, be it an empty one."""
    return isinstance(_value(holder, name), dict)


def _member(holder: dict[str, Any], name: str) -> dict[str, Any]:
    """An object, an empty one where there is none."""
    found = _value(holder, name)
    return found if isinstance(found, dict) else {}


def _text(holder: dict[str, Any], name: str) -> str:
    """A text that can be written anywhere, "" where there is none."""
    return json_access.text(holder, name) or json_access.text(holder, _SNAKE.get(name, name))


def _strings(holder: dict[str, Any], name: str) -> tuple[str, ...]:
    """The texts in a list."""
    found = holder.get(name)
    return tuple(one for one in found if isinstance(one, str) and one) if isinstance(found, list) else ()


def _seconds(duration: Any) -> float:
    """A duration as protocol buffers write it in JSON, "9.5s"; 0.0, at once, where it cannot be read."""
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


class TextProtocol(ABC):
    """One connection's way of being told texts."""

    @abstractmethod
    def announcing(self, lines: Sequence[Line]) -> dict[str, Any]:
        """Return what the setup says of ``lines``, which are to be recalled."""

    @abstractmethod
    def recalling(self, lines: Sequence[Line]) -> list[Frame]:
        """Return what tells lines without having them answered."""

    @abstractmethod
    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """Return what says a line, and has it answered or not."""

    @abstractmethod
    def responding(self) -> list[Frame]:
        """Return what has those lines answered that were told and not answered; nothing where there are none."""

    @abstractmethod
    def answering(self) -> None:
        """Results are told, and the model goes on with them."""


def texts_for(settings: RealtimeSettings, model: str) -> TextProtocol:
    """Return the way of a model: by the generation in its name, or as the setup is told to announce a history."""
    found = _GENERATION.search(model)
    announced = json_access.member(dict(settings.extra), _HISTORY).get(_ANNOUNCED) is True
    return RealtimeTextProtocol() if announced or (found is not None and int(found[1]) >= _NEWER) else ContentTextProtocol()


class ContentTextProtocol(TextProtocol):
    """Turns of the conversation, at any time; one that is complete is answered."""

    def __init__(self) -> None:
        self._owes_turn = False

    def announcing(self, lines: Sequence[Line]) -> dict[str, Any]:  # noqa: ARG002  (the newer way does)
        """Nothing: they may come at any time."""
        return {}

    def recalling(self, lines: Sequence[Line]) -> list[Frame]:
        """All lines in one frame."""
        self._owes_turn = bool(lines)
        return [_content(lines, complete=False)] if lines else []

    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """One turn, and with it the user's end where an answer is wanted."""
        self._owes_turn = not answer
        return [_content([line], complete=answer)]

    def responding(self) -> list[Frame]:
        """The end of the turn."""
        owes, self._owes_turn = self._owes_turn, False
        return [{"clientContent": {"turnComplete": True}}] if owes else []

    def answering(self) -> None:
        """The lines that were told go with the results."""
        self._owes_turn = False


class RealtimeTextProtocol(TextProtocol):
    """What is said is answered at once; turns are the history alone that the setup has announced.

    So a line that is not to be answered waits for the next that is.
    """

    def __init__(self) -> None:
        self._announced = False
        self._unsaid: list[str] = []

    def announcing(self, lines: Sequence[Line]) -> dict[str, Any]:
        """That a history comes. The server waits for what was announced, so it is only where there is one."""
        self._announced = any(line.role == "assistant" for line in lines)
        return {_HISTORY: {_ANNOUNCED: True}} if self._announced else {}

    def recalling(self, lines: Sequence[Line]) -> list[Frame]:
        """The lines as the history, but for those behind the model's last, which are still to be answered."""
        last = max((number for number, line in enumerate(lines, 1) if line.role == "assistant"), default=0)
        history, rest = (lines[:last], lines[last:]) if self._announced else ((), lines)
        self._unsaid += [line.text for line in rest]
        return [_content(history, complete=True)] if self._announced else []

    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """The line, with all that was not said before."""
        self._unsaid.append(line.text)
        return self.responding() if answer else []

    def responding(self) -> list[Frame]:
        """What was not said."""
        text = "\n\n".join(self._unsaid)
        self._unsaid.clear()
        return [{"realtimeInput": {"text": text}}] if text else []

    def answering(self) -> None:
        """What was not said waits: it is no part of the results."""


def _content(lines: Sequence[Line], *, complete: bool) -> Frame:
    """Lines as turns."""
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
    goes_on_by_itself: ClassVar[bool] = True

    def __init__(self, settings: RealtimeSettings) -> None:
        super().__init__(settings)
        self._tag = uuid4().hex
        self._numbers = count()
        self._set_up = False
        self._streaming = False
        self._texts = texts_for(settings, self.model)
        self._response = ""
        """The one that is under way."""
        self._last = ""
        self._told_over = False
        """The response was over before its turn was, so the end of the turn says nothing new."""
        self._is_cut = False
        """That was by an interruption."""
        self._answered = False
        """Nothing was said to the model since its last response."""
        self._awaited = 0
        """How often the model was asked since its last response."""
        self._waiting: list[tuple[str, str, str | None]] = []
        """The calls that were told last, while their results are awaited."""
        self._unnamed: list[str] = []
        """Our ids of those among them that came without one."""
        self._known: OrderedDict[str, None] = OrderedDict()
        """Ids of calls that have been told."""
        self._usage: dict[str, Any] = {}
        self._utterance: list[str] = []
        self._uttered = 0

    # What is sent.

    def url(self) -> str:
        """The model is no part of it."""
        return self.settings.url or self.default_url

    def headers(self, api_key: str) -> dict[str, str]:
        """The key in a header: in the URL, as it is often shown, it would be in logs."""
        return {"x-goog-api-key": api_key} if api_key else {}

    def greeting(self, opening: ConnectionSetup) -> list[Frame]:
        """The ``setup``, with all that the connection will ever be told of itself."""
        settings = self.settings
        extra = dict(settings.extra)
        own = extra.pop("tools", None)  # tools that the provider has itself stand beside ours
        extra.pop("historyConfig", None)  # is announced where there is a history
        generation: dict[str, Any] = {"responseModalities": [settings.output.upper()]}
        if settings.voice is not None:
            generation["speechConfig"] = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": settings.voice}}}
        setup: dict[str, Any] = {
            "model": self.model if "/" in self.model else f"models/{self.model}",
            "generationConfig": generation,
            # Without it a conversation in audio is over after a quarter of an hour.
            "contextWindowCompression": {"slidingWindow": {}},
            "sessionResumption": {"handle": opening.resume} if opening.resume else {},
            **self._texts.announcing(opening.lines),
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

    def configuring(self, opening: ConnectionSetup) -> list[Frame]:  # noqa: ARG002  (said already)
        """Nothing: the greeting did it."""
        return []

    def changing_tools(self, tools: Sequence[WireTool]) -> list[Frame]:  # noqa: ARG002  (cannot be said)
        """Nothing: another connection has to be opened (``updates_tools``)."""
        return []

    def recalling(self, opening: ConnectionSetup) -> list[Frame]:
        """The lines, and no answer asked for: ``responding`` may, where one was owed by the connection before."""
        return self._texts.recalling(opening.lines)

    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:
        """One line, and with it the user's end where an answer is wanted."""
        return self._saying(self._texts.speaking(line, answer=answer), asks=answer)

    def _saying(self, frames: list[Frame], *, asks: bool = True) -> list[Frame]:
        """Note that something new is said to the model, if it is; ``asks``: which it will answer."""
        if frames:
            self._told_over, self._answered = self._is_cut, False  # the end of a turn that was cut comes whatever is said
            self._awaited += asks
        return frames

    def sounding(self, audio: bytes) -> list[Frame]:
        """One piece; where the server does not listen for turns, the first one of a turn says so."""
        piece: Frame = {
            "realtimeInput": {
                "audio": {"data": base64.b64encode(audio).decode(), "mimeType": f"audio/pcm;rate={self.input_rate}"}
            }
        }
        self._answered = False
        starts = not self._streaming and not self.settings.detect_turns
        self._streaming = True
        return [{"realtimeInput": {"activityStart": {}}}, piece] if starts else [piece]

    def ending_audio(self) -> list[Frame]:
        """The end of the user's activity, or of the stream where the server detects turns: it would wait for silence else."""
        if not self._streaming:
            return []
        self._streaming = False
        end: dict[str, Any] = {"audioStreamEnd": True} if self.settings.detect_turns else {"activityEnd": {}}
        return self._saying([{"realtimeInput": end}])

    def answering(self, results: Sequence[CallResult]) -> list[Frame]:
        """All results in one frame; a call that came without an id is told by its name and its place among the others."""
        if not results:
            return []
        self._waiting = []
        self._unnamed = []
        self._texts.answering()
        return self._saying([{"toolResponse": {"functionResponses": [_response(result) for result in results]}}])

    def responding(self) -> list[Frame]:
        """What has lines answered that were told already; after results nothing, for then the model goes on by itself."""
        return self._saying(self._texts.responding())

    def cancelling(self, response_id: str) -> list[Frame]:  # noqa: ARG002  (cannot be said)
        """Nothing: only what the user says interrupts the model."""
        return []

    # What is read.

    def read(self, frame: Any) -> list[ServerEvent]:
        """One frame may say several things. What the server counted is read first: it belongs to a response that may end."""
        if not isinstance(frame, dict):
            return []
        self._usage = _member(frame, "usageMetadata") or self._usage
        news: list[ServerEvent] = []
        if _has(frame, "setupComplete"):
            self._set_up = True
            news.append(SessionOpened(configured=True))
        if content := _member(frame, "serverContent"):
            self._content(content, news)
        if call := _member(frame, "toolCall"):
            self._calls(call, news)
        if ids := _strings(_member(frame, "toolCallCancellation"), "ids"):
            news.append(CallsCancelled(ids[:_KNOWN]))
        if _has(frame, "goAway"):
            news.append(GoAway(_seconds(_value(_member(frame, "goAway"), "timeLeft"))))
        if _has(frame, "sessionResumptionUpdate"):
            update = _member(frame, "sessionResumptionUpdate")
            # While it cannot be resumed, an older handle would lead back to before what was said since.
            resumable = _value(update, "resumable") is not False
            news.append(SessionResumption(_text(update, "newHandle") if resumable else ""))
        if error := _member(frame, "error"):
            news.append(self._refusal(error))
        return news

    def _refusal(self, error: dict[str, Any]) -> ServerError:
        number = json_access.place(error, "code")
        code = _text(error, "status") or ("" if number is None else str(number))
        message = _text(error, "message") or "The server tells of an error."
        return ServerError(message, code, about="" if self._set_up else "session")

    def _content(self, content: dict[str, Any], news: list[ServerEvent]) -> None:
        if heard := _member(content, "inputTranscription"):
            self._hear(heard, news)
        for _, part in json_access.elements(_member(content, "modelTurn"), "parts"):
            self._part(part, news)
        if said := _text(_member(content, "outputTranscription"), "text"):
            # Transcripts have no place of their own among the other frames, and may come when all else has been said.
            late = not self._response and (self._told_over or self._answered)
            response_id = self._last if late else self._begun(news)
            news.append(TextDelta(response_id, said, spoken=self.settings.output == "audio"))
        if _value(content, "interrupted") is True:
            if not self._response and self._awaited == 1:
                self._begun(news)  # what was asked for is not answered any more: who waits for it has to know
            self._awaited = max(0, self._awaited - 1)
            self._take_back_the_unnamed(news)
            news.append(SpeechStarted())
            if self._response:
                self._end("cancelled", news, reason="interrupted")
            self._told_over = self._is_cut = True  # what ends the turn is still to come
        if _value(content, "turnComplete") is True:
            self._turn_over(_text(content, "turnCompleteReason"), news)

    def _turn_over(self, reason: str, news: list[ServerEvent]) -> None:
        if not self._response and self._told_over:
            self._told_over = self._is_cut = False
            return
        self._begun(news)  # an answer of nothing is one too: somebody may wait for it
        self._end("completed", news, reason=reason)

    def _part(self, part: dict[str, Any], news: list[ServerEvent]) -> None:
        if part.get("thought") is True:
            return
        if said := _text(part, "text"):
            news.append(TextDelta(self._begun(news), said))
        blob = _member(part, "inlineData")
        kind = _text(blob, "mimeType")[:_MOST_MIME]
        if self.settings.output == "audio" and _PCM.match(kind) and (audio := json_access.audio(blob, "data")):
            rate = _RATE.search(kind)
            news.append(AudioDelta(self._begun(news), audio, int(rate[1]) if rate is not None and int(rate[1]) else _OUTPUT_RATE))

    def _hear(self, heard: dict[str, Any], news: list[ServerEvent]) -> None:
        if not self.settings.transcribe:
            return
        if piece := _text(heard, "text"):
            news.append(InputTranscript(piece, whole=False))
            self._utterance.append(piece)
            self._uttered += len(piece)
        if _value(heard, "finished") is True or self._uttered > _LONGEST_UTTERANCE:
            self._heard_all(news)

    def _heard_all(self, news: list[ServerEvent]) -> None:
        """Tell an utterance whole. Seldom the server says where it ends, so what the model says next is taken for the end."""
        if whole := "".join(self._utterance).strip():
            news.append(InputTranscript(whole))
        self._utterance.clear()
        self._uttered = 0

    def _calls(self, batch: dict[str, Any], news: list[ServerEvent]) -> None:
        """The calls are the last that the model says before it has their results: its response ends with them."""
        listed = json_access.elements(batch, "functionCalls" if batch.get("functionCalls") else "function_calls")
        calls = [
            (_text(one, "id"), _text(one, "name"), json_access.arguments(one, "args")) for _, one in islice(listed, MOST_CALLS)
        ]
        if calls == self._waiting and not any(call_id for call_id, _, _ in calls):
            return  # told twice: the model says nothing new before it has the results
        new = [call for call in calls if call[0] not in self._known]
        if new:
            self._take_back_the_unnamed(news)  # the model waits for them no more: it has gone on
        self._waiting = calls
        if not new:
            return
        response_id = self._begun(news)
        for call_id, name, arguments in new:
            if call_id:
                self._known[call_id] = None
            key = call_id or f"{_MADE}{self._tag}_{next(self._numbers)}"
            if not call_id:
                self._unnamed.append(key)
            news.append(CallDelta(response_id, key, key, name, arguments=arguments, done=True))
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        self._end("completed", news)
        self._told_over = True

    def _take_back_the_unnamed(self, news: list[ServerEvent]) -> None:
        """Take back the calls that the server cannot name, as it does with others when the user goes on.

        Their results would be matched by name, and taken for those of the calls that it makes next.
        """
        if self._unnamed:
            news.append(CallsCancelled(tuple(self._unnamed)))
        self._unnamed = []
        self._waiting = []

    def _begun(self, news: list[ServerEvent]) -> str:
        """The response that is under way, which begins here if there is none."""
        if not self._response:
            self._heard_all(news)
            self._response = f"gemini-{self._tag}-{next(self._numbers)}"
            self._told_over = self._is_cut = False
            self._awaited = 0
            news.append(ResponseStarted(self._response))
        return self._response

    def _end(self, status: Status, news: list[ServerEvent], *, reason: str = "") -> None:
        news.append(ResponseDone(self._response, status, (), self._usage or None, reason))
        self._last, self._response = self._response, ""
        self._answered = True
        self._usage = {}


def _response(result: CallResult) -> dict[str, Any]:
    """A result as an object: itself where it is one, else within one."""
    try:
        value = json.loads(result.output, parse_constant=_refuse)
    except (ValueError, RecursionError):
        value = result.output
    told = {"name": result.name, "response": value if isinstance(value, dict) else {"result": value}}
    return told if result.call_id.startswith(_MADE) else {"id": result.call_id, **told}


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # NaN and Infinity are Python's: no server reads them
