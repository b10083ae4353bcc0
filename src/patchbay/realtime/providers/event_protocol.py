"""The event protocol of OpenAI, spoken also by Qwen, GLM and StepFun, with event names of 2024 and of 2025."""

from __future__ import annotations

import base64
import re
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
from typing import Any, ClassVar, Final, Literal, TypeAlias
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import uuid4

from patchbay.realtime.call_assembly import MAX_ARGUMENT_CHARS, MAX_CALLS
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers import json_access
from patchbay.realtime.providers.base import CallResult, ConnectionSetup, Dialect, Frame, Line, WireTool, tool_names
from patchbay.realtime.providers.call_keys import CallKeys, CallReference, KnownCall
from patchbay.realtime.server_events import (
    AudioDelta,
    CallDelta,
    FinalCall,
    InputTranscript,
    ResponseDone,
    ResponseStarted,
    ServerError,
    ServerEvent,
    SessionOpened,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    Status,
    TextDelta,
)

GENERATED_ID_PREFIX: Final = "response-made-here-"
"""Prefix of generated response ids."""

EVENT_ID_PREFIX: Final = "patchbay-"
"""Prefix of our frames' ids, followed by their subject."""

_About: TypeAlias = Literal["session", "response", "cancel", "item", ""]

_STATUS: Final[Mapping[str, Status]] = {
    "": "completed",  # GLM omits it
    "completed": "completed",
    "cancelled": "cancelled",
    "incomplete": "incomplete",
}
_MAX_RESPONSES: Final = 4
"""Number of responses whose calls are remembered."""

_SESSION_WORDS: Final = re.compile(r"session\.|tools|turn_detection", re.IGNORECASE)
_ITEM_WORDS: Final = re.compile(r"call_id|conversation\.item|function_call_output|\bitem\b", re.IGNORECASE)
_BUSY: Final = re.compile(r"already has an active response|conversation_already_has_active_response", re.IGNORECASE)
_SEARCHED_CHARS: Final = 2_000
"""Length of an error message that is searched for keywords."""
_ABOUT: Final[Mapping[str, _About]] = {"session": "session", "item": "item", "response": "response"}

_Reader: TypeAlias = Callable[["EventReader", dict[str, Any]], list[ServerEvent]]
_READERS: Final[dict[str, _Reader]] = {}


def _reads(*types: str) -> Callable[[_Reader], _Reader]:
    """Register a method as the reader of event types."""

    def register(reader: _Reader) -> _Reader:
        _READERS.update(dict.fromkeys(types, reader))
        return reader

    return register


class EventReader(Dialect):
    """The reading half of a dialect."""

    output_rate: ClassVar[int] = 24_000

    def __init__(self, settings: RealtimeSettings) -> None:
        super().__init__(settings)
        self.confirmed = False
        """True once the server has confirmed a ``session.update``."""
        self._unconfirmed = 0
        self._expected: frozenset[str] | None = None
        self._response = ""
        self._in_progress = False
        self._calls: OrderedDict[str, CallKeys] = OrderedDict()

    def read(self, frame: Any) -> list[ServerEvent]:
        """Dispatch on ``type``; unknown events are ignored."""
        if not isinstance(frame, dict):
            return []
        kind = frame.get("type")
        reader = _READERS.get(kind) if isinstance(kind, str) else None
        return [] if reader is None else reader(self, frame)

    @_reads("session.created")
    def _opened(self, _frame: dict[str, Any]) -> list[ServerEvent]:
        return [SessionOpened()]

    @_reads("session.updated", "session.update")  # the latter as in GLM's documentation
    def _configured(self, frame: dict[str, Any]) -> list[ServerEvent]:
        names = tool_names(json_access.member(frame, "session").get("tools"))
        self._count_confirmation(all_pending=names is not None and names == self._expected)
        self.confirmed = True
        own = tool_names(self.settings.extra.get("tools"))  # the provider's own tools
        return [SessionUpdated(None if names is None else names - (own or frozenset()))]

    def expect(self, tools: object) -> None:
        """Record a ``session.update`` with these tools that the server must confirm."""
        self._unconfirmed += 1
        self._expected = tool_names(tools)

    def _count_confirmation(self, *, all_pending: bool = False) -> None:
        self._unconfirmed = 0 if all_pending else max(0, self._unconfirmed - 1)

    @_reads("response.created")
    def _began(self, frame: dict[str, Any]) -> list[ServerEvent]:
        response = json_access.member(frame, "response")
        response_id = (
            json_access.text(response, "id") or json_access.text(frame, "response_id") or f"{GENERATED_ID_PREFIX}{uuid4().hex}"
        )
        if response_id == self._response:
            return []
        self._response, self._in_progress = response_id, True
        return [ResponseStarted(response_id)]

    @_reads("response.done")
    def _ended(self, frame: dict[str, Any]) -> list[ServerEvent]:
        response = json_access.member(frame, "response")
        status = json_access.text(response, "status")
        if status == "in_progress":  # GLM's form of response.created
            return self._began(frame)
        response_id = self._of(json_access.text(response, "id") or json_access.text(frame, "response_id"))
        if response_id == self._response:
            if not self._in_progress:
                return []
            self._in_progress = False
        details = json_access.member(response, "status_details")
        error = json_access.member(details, "error")
        reason = json_access.text(details, "reason")
        reason = reason or ": ".join(filter(None, (json_access.text(error, "code"), json_access.text(error, "message"))))
        counted = json_access.member(response, "usage") or json_access.member(frame, "usage") or None
        # Calls of a response with an unknown status must not run.
        ending: Status = _STATUS.get(status or ("" if response.get("status") is None else "?"), "failed")
        return [ResponseDone(response_id, ending, self._whole_calls(response_id, response), counted, reason)]

    def _whole_calls(self, response_id: str, response: dict[str, Any]) -> tuple[FinalCall, ...]:
        items = ((index, item) for index, item in json_access.elements(response, "output") if item.get("type") == "function_call")
        listed = [self._reference(item, index=index, whole=True) for index, item in islice(items, MAX_CALLS)]
        if not listed:
            return ()
        return tuple(
            FinalCall(known.key, self.call_id(known), reference.name, reference.arguments)
            for known, reference in self._calls_of(response_id).match_all(listed)
        )

    def _id(self, frame: dict[str, Any]) -> str:
        return self._of(json_access.text(frame, "response_id"))

    def _of(self, response_id: str) -> str:
        """Return the response id, or that of the response in progress if there is none."""
        return self._response if not response_id or self._response.startswith(GENERATED_ID_PREFIX) else response_id

    def _calls_of(self, response_id: str) -> CallKeys:
        calls = self._calls.get(response_id)
        if calls is None:
            calls = self._calls[response_id] = CallKeys(response_id)
            if len(self._calls) > _MAX_RESPONSES:
                self._calls.popitem(last=False)
        return calls

    @_reads("response.output_text.delta", "response.text.delta")
    def _text(self, frame: dict[str, Any]) -> list[ServerEvent]:
        piece = json_access.text(frame, "delta")
        return [TextDelta(self._id(frame), piece)] if piece else []

    @_reads("response.output_audio_transcript.delta", "response.audio_transcript.delta")
    def _transcript(self, frame: dict[str, Any]) -> list[ServerEvent]:
        piece = json_access.text(frame, "delta")
        # In text mode the transcript is the answer itself.
        return [TextDelta(self._id(frame), piece, spoken=self.settings.output == "audio")] if piece else []

    @_reads("response.output_audio.delta", "response.audio.delta")
    def _audio(self, frame: dict[str, Any]) -> list[ServerEvent]:
        piece = json_access.audio(frame, "delta") if self.settings.output == "audio" else b""
        return [AudioDelta(self._id(frame), piece, self.output_rate)] if piece else []

    @_reads("input_audio_buffer.speech_started")
    def _speech(self, _frame: dict[str, Any]) -> list[ServerEvent]:
        return [SpeechStarted()]

    @_reads("input_audio_buffer.speech_stopped")
    def _silence(self, _frame: dict[str, Any]) -> list[ServerEvent]:
        return [SpeechStopped()]

    @_reads("conversation.item.input_audio_transcription.completed", "conversation.item.input_audio_transcription.delta")
    def _input_transcript(self, frame: dict[str, Any]) -> list[ServerEvent]:
        whole = frame["type"].endswith("completed")
        text = json_access.text(frame, "transcript" if whole else "delta") if self.settings.transcribe else ""
        return [InputTranscript(text, whole=whole)] if text else []

    @_reads("response.output_item.added", "response.output_item.done")
    def _output_item(self, frame: dict[str, Any]) -> list[ServerEvent]:
        item = json_access.member(frame, "item")
        if item.get("type") != "function_call":
            return []
        whole = frame["type"].endswith("done") and json_access.text(item, "status") != "incomplete"
        return self._piece(frame, self._reference(item, index=json_access.index(frame, "output_index"), whole=whole))

    @_reads("response.function_call_arguments.delta", "response.function_call_arguments.done")
    def _arguments(self, frame: dict[str, Any]) -> list[ServerEvent]:
        """Read a frame about arguments: like an item, but with ``item_id``."""
        whole = frame["type"].endswith("done")
        reference = self._reference(frame, index=json_access.index(frame, "output_index"), whole=whole)
        reference.item = json_access.text(frame, "item_id")
        return self._piece(frame, reference, delta="" if whole else json_access.text(frame, "delta"))

    def _reference(self, holder: dict[str, Any], *, index: int | None, whole: bool) -> CallReference:
        return CallReference(
            item=json_access.text(holder, "id"),
            call_id=json_access.text(holder, "call_id"),
            index=index,
            name=self.named(json_access.text(holder, "name")),
            whole=whole,
            arguments=(json_access.arguments(holder, "arguments") or "")[: MAX_ARGUMENT_CHARS + 1] if whole else "",
        )

    def _piece(self, frame: dict[str, Any], reference: CallReference, *, delta: str = "") -> list[ServerEvent]:
        response_id = self._id(frame)
        known = self._calls_of(response_id).find(reference)
        return [
            CallDelta(
                response_id,
                known.key,
                call_id=self.call_id(known),
                name=reference.name,
                delta=delta,
                arguments=reference.arguments or None,
                done=reference.whole,
            )
        ]

    # Overridden by providers

    def named(self, name: str) -> str:
        """Return the tool name for a frame's name, which may be empty."""
        return name

    def call_id(self, known: KnownCall) -> str:
        """Return the id of a call, as far as known."""
        return known.reference.call_id

    @_reads("error")
    def _refused(self, frame: dict[str, Any]) -> list[ServerEvent]:
        error = json_access.member(frame, "error") or frame
        short = frame.get("error")
        message = json_access.text(error, "message") or (json_access.text(frame, "error") if isinstance(short, str) else "")
        number = json_access.index(error, "code")
        code = json_access.text(error, "code") or ("" if number is None else str(number))
        param = json_access.text(error, "param")
        event_id = json_access.text(error, "event_id") if error is not frame else ""
        words = f"{code} {message[:_SEARCHED_CHARS]}"
        if "response_cancel_not_active" in words or "no active response" in words:
            return [ServerError(message, code, event_id=event_id, about="cancel")]
        busy = _BUSY.search(words) is not None
        about: _About = "response" if busy else self._about(event_id, param, words)
        if about == "session":
            self._count_confirmation()
        if code == "" and error is not frame:
            code = json_access.text(error, "type")
        return [ServerError(message or "The server reported an error.", code, param, event_id, about, busy)]

    def _about(self, event_id: str, param: str, words: str) -> _About:
        """Classify an error by our frame's id, by the parameter, by keywords, or by what is unconfirmed."""
        if event_id.startswith(EVENT_ID_PREFIX):
            return _ABOUT.get(event_id.removeprefix(EVENT_ID_PREFIX).partition("-")[0], "")
        if param.partition(".")[0] in ("session", "item", "response"):
            return _ABOUT[param.partition(".")[0]]
        if _ITEM_WORDS.search(words):
            return "item"
        if "response.create" in words:
            return "response"
        return "session" if self._unconfirmed or _SESSION_WORDS.search(words) else ""


class EventDialect(EventReader):
    """One connection with the event protocol."""

    update_fields: ClassVar[tuple[str, ...]] = ("tools",)
    """Members of the session that an update of the tools must repeat."""

    assistant_content_type: ClassVar[str] = "text"
    """Content type of replayed assistant lines."""

    cancels_by_id: ClassVar[bool] = False

    has_voice_member: ClassVar[bool] = True
    """True if the session object has its voice in the member ``voice``."""

    def __init__(self, settings: RealtimeSettings) -> None:
        super().__init__(settings)
        self._frames = count(1)
        self._buffered = False

    def url(self) -> str:
        """Add ``?model=`` unless the URL has one."""
        url = self.settings.url or self.default_url
        query = urlsplit(url).query
        if "model" in parse_qs(query, keep_blank_values=True):
            return url
        return f"{url}{'&' if query else '?'}{urlencode({'model': self.model})}"

    def headers(self, api_key: str) -> dict[str, str]:
        """Return the key as a bearer token."""
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def setup_frames(self, opening: ConnectionSetup) -> list[Frame]:  # noqa: ARG002  (see ``configure_frames``)
        """Nothing: the server speaks first."""
        return []

    @abstractmethod
    def session(self) -> dict[str, Any]:
        """Return the session object for the settings, without ``voice``, ``instructions``, tools and ``extra``."""

    @property
    def modalities(self) -> list[str]:
        """The output with the member names of 2024."""
        return ["text", "audio"] if self.settings.output == "audio" else ["text"]

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """Adjust the complete session object before it is sent."""
        return session

    def configure_frames(self, opening: ConnectionSetup) -> list[Frame]:
        """One ``session.update`` with the whole session."""
        return [self._update(self._session(opening.tools))]

    def tools_frames(self, tools: Sequence[WireTool]) -> list[Frame]:
        """One ``session.update`` with the tools and the members that must be repeated."""
        session = self._session(tools)
        return [self._update({name: session[name] for name in self.update_fields if name in session})]

    def _session(self, tools: Sequence[WireTool]) -> dict[str, Any]:
        session, settings = self.session(), self.settings
        if settings.voice is not None and self.has_voice_member:
            session["voice"] = settings.voice
        if settings.instructions:
            session["instructions"] = settings.instructions
        extra = dict(settings.extra)
        own = extra.pop("tools", None)  # the provider's own tools precede or follow ours
        session = json_access.merged(session, extra)
        session["tools"] = [*tools, *(own if isinstance(own, Sequence) and not isinstance(own, str) else ())]
        return self.complete(session)

    def _update(self, session: Mapping[str, Any]) -> Frame:
        self.expect(session.get("tools"))
        return self._frame("session", {"type": "session.update", "session": session})

    def history_frames(self, opening: ConnectionSetup) -> list[Frame]:
        """One item for each line."""
        return [self._message_frame(line) for line in opening.lines]

    def text_frames(self, line: Line, *, answer: bool) -> list[Frame]:  # noqa: ARG002  (see the docstring)
        """One item; the response is requested separately."""
        return [self._message_frame(line)]

    def _message_frame(self, line: Line) -> Frame:
        kind = self.assistant_content_type if line.role == "assistant" else "input_text"
        return self._item({"type": "message", "role": line.role, "content": [{"type": kind, "text": line.text}]})

    def _item(self, item: Mapping[str, Any]) -> Frame:
        return self._frame("item", {"type": "conversation.item.create", "item": item})

    def audio_frames(self, audio: bytes) -> list[Frame]:
        """One append, without an id: there are many, and a refusal has no consequence."""
        self._buffered = True
        return [{"type": "input_audio_buffer.append", "audio": base64.b64encode(self.encode_audio(audio)).decode()}]

    def encode_audio(self, audio: bytes) -> bytes:
        """Return audio in the provider's format."""
        return audio

    def audio_end_frames(self) -> list[Frame]:
        """Commit the buffer, unless it is empty, which would be refused."""
        if self.settings.detect_turns or not self._buffered:
            return []
        self._buffered = False
        return [self._frame("buffer", {"type": "input_audio_buffer.commit"})]

    def result_frames(self, results: Sequence[CallResult]) -> list[Frame]:
        """One item for each result."""
        return [self._item(self.result(result)) for result in results]

    def result(self, result: CallResult) -> dict[str, Any]:
        """Return the item for a result."""
        return {"type": "function_call_output", "call_id": result.call_id, "output": result.output}

    def response_frames(self) -> list[Frame]:
        """``response.create``."""
        return [self._frame("response", {"type": "response.create"})]

    def cancel_frames(self, response_id: str) -> list[Frame]:
        """``response.cancel``, by id where the server accepts one, so that no newer response is cancelled."""
        cancel = {"type": "response.cancel"}
        if self.cancels_by_id and response_id and not response_id.startswith(GENERATED_ID_PREFIX):
            cancel["response_id"] = response_id
        return [self._frame("cancel", cancel)]

    def _frame(self, about: str, frame: Mapping[str, Any]) -> Frame:
        """Add an id that names the subject: most servers return it with errors."""
        return {"event_id": f"{EVENT_ID_PREFIX}{about}-{next(self._frames)}", **frame}
