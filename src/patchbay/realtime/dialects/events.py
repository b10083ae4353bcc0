"""What servers are sent that speak as OpenAI does: OpenAI itself, Qwen, GLM and StepFun.

What lives here: all that they have in common. What does not: what one of them wants otherwise (its own file), and reading
(``eventreader``).
"""

from __future__ import annotations

import base64
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

from patchbay.realtime.dialect import CallResult, Frame, Line, Opening, WireTool
from patchbay.realtime.dialects import reading
from patchbay.realtime.dialects.eventreader import MADE, OURS, EventReader
from patchbay.realtime.settings import RealtimeSettings


class EventDialect(EventReader):
    """One connection to a server that speaks in such events."""

    repeated: ClassVar[tuple[str, ...]] = ("tools",)
    """The members of the session that a change of the tools has to tell."""

    spoken_before: ClassVar[str] = "text"
    """The type of what the assistant is told to have said."""

    cancels_by_id: ClassVar[bool] = False

    def __init__(self, settings: RealtimeSettings) -> None:
        super().__init__(settings)
        self._frames = count(1)
        self._buffered = False

    def url(self) -> str:
        """``?model=`` behind the URL, where it names none."""
        url = self.settings.url or self.default_url
        query = urlsplit(url).query
        if "model" in parse_qs(query, keep_blank_values=True):
            return url
        return f"{url}{'&' if query else '?'}{urlencode({'model': self.model})}"

    def headers(self, api_key: str) -> dict[str, str]:
        """The key as a bearer token, none for a server that wants none."""
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def greeting(self, opening: Opening) -> list[Frame]:  # noqa: ARG002  (what to say is for ``configuring``)
        """Nothing: the server speaks first."""
        return []

    @abstractmethod
    def session(self) -> dict[str, Any]:
        """Return the session that the settings ask for, but for the tools and ``extra``."""

    def complete(self, session: dict[str, Any]) -> dict[str, Any]:
        """Return the session as it is sent, once all is in it."""
        return session

    def configuring(self, opening: Opening) -> list[Frame]:
        """One ``session.update`` with all of the session."""
        return [self._update(self._session(opening.tools))]

    def changing_tools(self, tools: Sequence[WireTool]) -> list[Frame]:
        """One ``session.update`` with the tools, and what has to stand beside them."""
        session = self._session(tools)
        return [self._update({name: session[name] for name in self.repeated if name in session})]

    def _session(self, tools: Sequence[WireTool]) -> dict[str, Any]:
        extra = dict(self.settings.extra)
        own = extra.pop("tools", None)  # tools that the provider has itself stand beside ours
        session = reading.merged(self.session(), extra)
        session["tools"] = [*tools, *(own if isinstance(own, Sequence) and not isinstance(own, str) else ())]
        return self.complete(session)

    def _update(self, session: Mapping[str, Any]) -> Frame:
        self.expect(session.get("tools"))
        return self._frame("session", {"type": "session.update", "session": session})

    def recalling(self, opening: Opening) -> list[Frame]:
        """One item for each line."""
        return [self._said(line) for line in opening.lines]

    def speaking(self, line: Line, *, answer: bool) -> list[Frame]:  # noqa: ARG002  (as the docstring says)
        """One item; an answer is asked for by itself."""
        return [self._said(line)]

    def _said(self, line: Line) -> Frame:
        kind = self.spoken_before if line.role == "assistant" else "input_text"
        return self._item({"type": "message", "role": line.role, "content": [{"type": kind, "text": line.text}]})

    def _item(self, item: Mapping[str, Any]) -> Frame:
        return self._frame("item", {"type": "conversation.item.create", "item": item})

    def sounding(self, audio: bytes) -> list[Frame]:
        """One piece for the buffer. It gets no id: there are many, and a refusal of one changes nothing."""
        self._buffered = True
        return [{"type": "input_audio_buffer.append", "audio": base64.b64encode(self.recorded(audio)).decode()}]

    def recorded(self, audio: bytes) -> bytes:
        """Return audio as the provider takes it."""
        return audio

    def ending_audio(self) -> list[Frame]:
        """The commit of what is in the buffer: an empty one would be refused."""
        if self.settings.detect_turns or not self._buffered:
            return []
        self._buffered = False
        return [self._frame("buffer", {"type": "input_audio_buffer.commit"})]

    def answering(self, results: Sequence[CallResult]) -> list[Frame]:
        """One item for each result."""
        return [self._item(self.result(result)) for result in results]

    def result(self, result: CallResult) -> dict[str, Any]:
        """Return the item that tells a result."""
        return {"type": "function_call_output", "call_id": result.call_id, "output": result.output}

    def responding(self) -> list[Frame]:
        """``response.create``."""
        return [self._frame("response", {"type": "response.create"})]

    def cancelling(self, response_id: str) -> list[Frame]:
        """``response.cancel``; by the id where the server takes it, so that none is cancelled that began in the meantime."""
        cancel = {"type": "response.cancel"}
        if self.cancels_by_id and response_id and not response_id.startswith(MADE):
            cancel["response_id"] = response_id
        return [self._frame("cancel", cancel)]

    def _frame(self, about: str, frame: Mapping[str, Any]) -> Frame:
        """The frame with an id that says what it is about: most servers name it when they refuse it."""
        return {"event_id": f"{OURS}{about}-{next(self._frames)}", **frame}
