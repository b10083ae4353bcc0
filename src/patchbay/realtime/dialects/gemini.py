"""Gemini Live: one ``setup`` for a connection, tools among it; turns without ids, which go on by themselves after results.

What lives here: the wire, but for texts (``geminitexts``). Whatever has no id there gets one of ours: responses, which here are
what the model says from its first word until its turn ends or it calls tools, and calls, where the server names none.
"""

from __future__ import annotations

import base64
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count, islice
from typing import Any, ClassVar, Final
from uuid import uuid4

from patchbay.realtime.calls import MOST_CALLS
from patchbay.realtime.dialect import CallResult, Dialect, Frame, Line, Opening, WireTool
from patchbay.realtime.dialects import camel, reading
from patchbay.realtime.dialects.geminitexts import texts_for
from patchbay.realtime.news import (
    CallPiece,
    CallsCancelled,
    Heard,
    Leaving,
    News,
    Opened,
    Refused,
    ResponseBegan,
    ResponseEnded,
    Resumable,
    Said,
    Sounded,
    Status,
    UserSpeaks,
)
from patchbay.realtime.settings import RealtimeSettings
from patchbay.schema.dialects import DIALECTS

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

    def greeting(self, opening: Opening) -> list[Frame]:
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
        setup = reading.merged(setup, extra)
        tools = [{"functionDeclarations": [*opening.tools]}] if opening.tools else []
        if tools or own:
            setup["tools"] = [*(own if isinstance(own, Sequence) and not isinstance(own, str) else ()), *tools]
        return [{"setup": setup}]

    def configuring(self, opening: Opening) -> list[Frame]:  # noqa: ARG002  (said already)
        """Nothing: the greeting did it."""
        return []

    def changing_tools(self, tools: Sequence[WireTool]) -> list[Frame]:  # noqa: ARG002  (cannot be said)
        """Nothing: another connection has to be opened (``updates_tools``)."""
        return []

    def recalling(self, opening: Opening) -> list[Frame]:
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

    def read(self, frame: Any) -> list[News]:
        """One frame may say several things. What the server counted is read first: it belongs to a response that may end."""
        if not isinstance(frame, dict):
            return []
        self._usage = camel.member(frame, "usageMetadata") or self._usage
        news: list[News] = []
        if camel.has(frame, "setupComplete"):
            self._set_up = True
            news.append(Opened(configured=True))
        if content := camel.member(frame, "serverContent"):
            self._content(content, news)
        if call := camel.member(frame, "toolCall"):
            self._calls(call, news)
        if ids := camel.strings(camel.member(frame, "toolCallCancellation"), "ids"):
            news.append(CallsCancelled(ids[:_KNOWN]))
        if camel.has(frame, "goAway"):
            news.append(Leaving(camel.seconds(camel.value(camel.member(frame, "goAway"), "timeLeft"))))
        if camel.has(frame, "sessionResumptionUpdate"):
            update = camel.member(frame, "sessionResumptionUpdate")
            # While it cannot be resumed, an older handle would lead back to before what was said since.
            resumable = camel.value(update, "resumable") is not False
            news.append(Resumable(camel.text(update, "newHandle") if resumable else ""))
        if error := camel.member(frame, "error"):
            news.append(self._refusal(error))
        return news

    def _refusal(self, error: dict[str, Any]) -> Refused:
        number = reading.place(error, "code")
        code = camel.text(error, "status") or ("" if number is None else str(number))
        message = camel.text(error, "message") or "The server tells of an error."
        return Refused(message, code, about="" if self._set_up else "session")

    def _content(self, content: dict[str, Any], news: list[News]) -> None:
        if heard := camel.member(content, "inputTranscription"):
            self._hear(heard, news)
        for _, part in reading.elements(camel.member(content, "modelTurn"), "parts"):
            self._part(part, news)
        if said := camel.text(camel.member(content, "outputTranscription"), "text"):
            # Transcripts have no place of their own among the other frames, and may come when all else has been said.
            late = not self._response and (self._told_over or self._answered)
            response_id = self._last if late else self._begun(news)
            news.append(Said(response_id, said, spoken=self.settings.output == "audio"))
        if camel.value(content, "interrupted") is True:
            if not self._response and self._awaited == 1:
                self._begun(news)  # what was asked for is not answered any more: who waits for it has to know
            self._awaited = max(0, self._awaited - 1)
            self._take_back_the_unnamed(news)
            news.append(UserSpeaks())
            if self._response:
                self._end("cancelled", news, reason="interrupted")
            self._told_over = self._is_cut = True  # what ends the turn is still to come
        if camel.value(content, "turnComplete") is True:
            self._turn_over(camel.text(content, "turnCompleteReason"), news)

    def _turn_over(self, reason: str, news: list[News]) -> None:
        if not self._response and self._told_over:
            self._told_over = self._is_cut = False
            return
        self._begun(news)  # an answer of nothing is one too: somebody may wait for it
        self._end("completed", news, reason=reason)

    def _part(self, part: dict[str, Any], news: list[News]) -> None:
        if part.get("thought") is True:
            return
        if said := camel.text(part, "text"):
            news.append(Said(self._begun(news), said))
        blob = camel.member(part, "inlineData")
        kind = camel.text(blob, "mimeType")[:_MOST_MIME]
        if self.settings.output == "audio" and _PCM.match(kind) and (audio := reading.audio(blob, "data")):
            rate = _RATE.search(kind)
            news.append(Sounded(self._begun(news), audio, int(rate[1]) if rate is not None and int(rate[1]) else _OUTPUT_RATE))

    def _hear(self, heard: dict[str, Any], news: list[News]) -> None:
        if not self.settings.transcribe:
            return
        if piece := camel.text(heard, "text"):
            news.append(Heard(piece, whole=False))
            self._utterance.append(piece)
            self._uttered += len(piece)
        if camel.value(heard, "finished") is True or self._uttered > _LONGEST_UTTERANCE:
            self._heard_all(news)

    def _heard_all(self, news: list[News]) -> None:
        """Tell an utterance whole. Seldom the server says where it ends, so what the model says next is taken for the end."""
        if whole := "".join(self._utterance).strip():
            news.append(Heard(whole))
        self._utterance.clear()
        self._uttered = 0

    def _calls(self, batch: dict[str, Any], news: list[News]) -> None:
        """The calls are the last that the model says before it has their results: its response ends with them."""
        listed = reading.elements(batch, "functionCalls" if batch.get("functionCalls") else "function_calls")
        calls = [
            (camel.text(one, "id"), camel.text(one, "name"), reading.arguments(one, "args"))
            for _, one in islice(listed, MOST_CALLS)
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
            news.append(CallPiece(response_id, key, key, name, arguments=arguments, done=True))
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        self._end("completed", news)
        self._told_over = True

    def _take_back_the_unnamed(self, news: list[News]) -> None:
        """Take back the calls that the server cannot name, as it does with others when the user goes on.

        Their results would be matched by name, and taken for those of the calls that it makes next.
        """
        if self._unnamed:
            news.append(CallsCancelled(tuple(self._unnamed)))
        self._unnamed = []
        self._waiting = []

    def _begun(self, news: list[News]) -> str:
        """The response that is under way, which begins here if there is none."""
        if not self._response:
            self._heard_all(news)
            self._response = f"gemini-{self._tag}-{next(self._numbers)}"
            self._told_over = self._is_cut = False
            self._awaited = 0
            news.append(ResponseBegan(self._response))
        return self._response

    def _end(self, status: Status, news: list[News], *, reason: str = "") -> None:
        news.append(ResponseEnded(self._response, status, (), self._usage or None, reason))
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
