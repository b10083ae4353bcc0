"""Sessions of the OpenAI event protocol, shared by FakeOpenAI, FakeGLM, FakeQwen and FakeStepFun.

Session updates and tool definitions differ by provider (``openai``); events are in ``frames``.
"""

from __future__ import annotations

import base64
import binascii
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from typing_extensions import override
from websockets.asyncio.server import ServerConnection

from patchbay.testing.realtime.frames import (
    Event,
    EventConnection,
    Problem,
    content_problem,
    missing,
    tool_definition,
    tools_problem,
)
from patchbay.testing.realtime.records import FakeState, Issued
from patchbay.testing.realtime.session import ActiveResponse, Cut


class EventProtocolConnection(EventConnection):
    """A connection to a server with OpenAI's event protocol."""

    nested: ClassVar[bool]
    """True if a tool is defined as ``{"type": "function", "function": {…}}``, and not as ``{"type": "function", "name": …}``."""

    roles: ClassVar[frozenset[str]] = frozenset({"user", "assistant", "system"})
    needs_model: ClassVar[bool] = True
    """True if the URL names the model."""

    cancels_by_id: ClassVar[bool] = False
    """True if a cancel may name the response; else it ends any that is in progress."""

    accepts_empty: ClassVar[bool] = True
    """True if texts and results may be empty."""

    def __init__(self, fake: FakeState, socket: ServerConnection, number: int) -> None:
        super().__init__(fake, socket, number)
        self.session: Event = {}
        self._has_new_input = True
        self._request_refused = False
        self._unrequested_ended_at: float | None = None

    # Overridden by providers

    @abstractmethod
    def initial(self) -> Event:
        """Return the session before its first update."""

    @abstractmethod
    def check(self, session: Mapping[str, Any]) -> Problem | None:
        """Return the problem of a session update, apart from its tools."""

    @abstractmethod
    def merged(self, session: Mapping[str, Any]) -> Event:
        """Return the session after an update."""

    def content_types(self, role: str) -> Sequence[str]:
        """Return the content types that a message of this role may have."""
        return ("text", "output_text") if role == "assistant" else ("input_text", "text")

    def error(self, problem: Problem, event_id: Any) -> Event:  # noqa: ARG002  (OpenAI returns it)
        """Return the error event; ``event_id`` is that of the client's event."""
        error = {"type": "invalid_request_error", "code": problem.code, "message": problem.message, "param": problem.param}
        return {"type": "error", "error": error}

    # Client events

    @override
    async def greet(self) -> None:
        request = self.socket.request
        model = parse_qs(urlsplit(request.path).query).get("model", [""])[0] if request is not None else ""
        if self.needs_model and not model:
            self.violate("no model in the URL")
        self.session = {"id": self.fake.new_id("sess"), "object": "realtime.session", "model": model, **self.initial()}
        await self.send(self.stamp({"type": "session.created", "session": self.session}))

    @override
    async def refuse_message(self) -> None:
        await self._refuse(Problem("Could not parse the message as a JSON object.", "invalid_json", violation=False), None)

    @override
    async def handle_frame(self, frame: dict[str, Any]) -> None:
        problem = await self._dispatch(frame)
        if problem is not None:
            await self._refuse(problem, frame.get("event_id"))

    async def _refuse(self, problem: Problem, event_id: Any) -> None:
        if problem.violation:
            self.violate(problem.message)
        self.fake.refusals.append(problem.code)
        await self.send(self.stamp(self.error(problem, event_id)))

    async def _dispatch(self, frame: dict[str, Any]) -> Problem | None:
        kind = frame.get("type")
        if kind == "session.update":
            return await self._update(frame.get("session"))
        if kind == "conversation.item.create":
            return await self._item(frame.get("item"))
        if kind == "response.create":
            return self._create()
        if kind == "response.cancel":
            named = frame.get("response_id") if self.cancels_by_id else None
            if self.playing is None or self.playing.over or named not in (None, self.playing.response_id):
                text = "Cancellation failed: no active response found."
                return Problem(text, "response_cancel_not_active", violation=False)
            await self.cut("client_cancelled")
            return None
        if isinstance(kind, str) and kind.startswith("input_audio_buffer."):
            return await self._audio(kind, frame)
        if kind in ("conversation.item.truncate", "conversation.item.delete"):
            done = f"{kind}{'d' if kind.endswith('e') else ''}"
            await self.send(self.stamp({**frame, "type": done}))
            return None
        return Problem(f"Invalid value: {kind!r} is not a type of a client's event.", param="type")

    async def _update(self, change: Any) -> Problem | None:
        if not isinstance(change, dict):
            return missing("session")
        self.fake.sessions.append(change)
        if (problem := self.check(change) or self.check_tools(change.get("tools"))) is not None:
            return problem
        outcome = self.fake.next_update()
        if outcome == "refuse":
            return Problem("The session cannot be changed so.", param="session.tools", violation=False)
        if outcome == "silent":
            return None
        self.session = self.merged(change)
        self.fake.tools = [tool_definition(tool, nested=self.nested)["name"] for tool in self.session.get("tools") or ()]
        await self.send(self.stamp({"type": "session.updated", "session": self.session}))
        return None

    def check_tools(self, tools: Any) -> Problem | None:
        """Return the problem of a list of tools."""
        return tools_problem(tools, nested=self.nested)

    # Items and results

    async def _item(self, item: Any) -> Problem | None:
        if not isinstance(item, dict):
            return missing("item")
        kind = item.get("type")
        if kind == "function_call_output":
            return await self._result(item)
        if kind != "message":
            return Problem(f"Invalid value: {kind!r} is not a type of an item.", param="item.type")
        role = item.get("role")
        if not isinstance(role, str) or role not in self.roles:
            return Problem(f"Invalid value: {role!r} is not a role.", param="item.role")
        content: Any = item.get("content")
        if (problem := content_problem(content, self.content_types(role))) is not None:
            return problem
        text = "".join(part["text"] for part in content)
        if not text and not self.accepts_empty:
            return Problem("The text of 'item.content' is empty.", param="item.content")
        self.add_input(role, text)
        self._has_new_input = True
        await self._added(item)
        return None

    async def _result(self, item: dict[str, Any]) -> Problem | None:
        output = item.get("output")
        if not isinstance(output, str):
            return Problem("Invalid type for 'item.output': expected a string.", "invalid_type", "item.output")
        if not output and not self.accepts_empty:
            return Problem("'item.output' is empty.", param="item.output")
        call_id = item.get("call_id", "")
        call = self.called(call_id)
        good = self.fake.record_result(self.number, call, str(call_id), output, among=self.calls)
        if not good or call is None:
            text = f"Tool call ID {call_id!r} not found in conversation."
            return Problem(text, "invalid_tool_call_id", "item.call_id", violation=False)
        self.add_input("result", output, call.call_id)
        if call.wanted == "must":
            self._has_new_input = True
        await self.on_result(call)
        await self._added(item)
        return None

    def called(self, call_id: Any) -> Issued | None:
        """Return the call of a result: the one with its id, or the first without an id."""
        return self.calls.find(call_id) or next((call for call in self.calls.open if not call.sent_id), None)

    async def _added(self, item: Mapping[str, Any]) -> None:
        whole = {"id": self.fake.new_id("item"), "object": "realtime.item", "status": "completed", **item}
        for kind in self.wire.items:
            if kind:
                await self.send(self.stamp({"type": kind, "previous_item_id": None, "item": whole}))

    # Responses

    @property
    @override
    def unasked(self) -> str:
        playing = self.playing
        if playing is None or not self.alive or not playing.calls or playing.status != "completed":
            return ""
        return "" if any(call.open for call in playing.calls) else playing.response_id

    def _create(self) -> Problem | None:
        playing = self.playing
        # An unrequested response may cross a request, and look like the answer to it.
        unheard = self.fake.crossed(self._unrequested_ended_at)
        if playing is not None and not playing.over:
            self._request_refused = True
            text = f"Conversation already has an active response in progress: {playing.response_id}."
            known = playing.asked and not playing.answer.late and not unheard
            return Problem(text, "conversation_already_has_active_response", violation=known)
        pending = [call.call_id for call in self.calls.open if call.wanted == "must"]
        if pending and not unheard:
            self.violate(f"response.create before the result of {', '.join(map(repr, pending))}")
        over = playing is not None and playing.status in ("completed", "cancelled")
        if over and not pending and not self._has_new_input and not self._request_refused and not unheard:
            self.violate("response.create, and nothing new was said")
        self.respond(asked=True)
        return None

    @override
    def respond(self, *, asked: bool) -> None:
        self._has_new_input = self._request_refused = False
        super().respond(asked=asked)

    @override
    async def on_response_ended(self, playing: ActiveResponse) -> None:
        """Record the end of a response that was not requested."""
        if not playing.asked:
            self._unrequested_ended_at = playing.ended_at

    @override
    def begin_frames(self, playing: ActiveResponse) -> list[Event]:
        return [self.response("response.created", playing, status="in_progress", details=None)]

    @override
    def end_frames(self, playing: ActiveResponse) -> list[Event]:
        details: dict[str, Event] = {
            "completed": {"type": "completed"},
            "cancelled": {"type": "cancelled", "reason": "client_cancelled"},
            "incomplete": {"type": "incomplete", "reason": "max_output_tokens"},
            "failed": {"type": "failed", "error": {"type": "server_error", "code": "server_error"}},
        }
        return [self._done(playing, details[playing.status or "completed"])]

    def cut_frames(self, playing: ActiveResponse, why: Cut) -> list[Event]:
        """Return the ends of items that were begun, and ``response.done``."""
        for call in playing.calls:
            if not self.was_sent(playing, call):
                self.fake.void(call, "never sent")
        return [*self.cut_items(playing), self._done(playing, {"type": "cancelled", "reason": why})]

    def _done(self, playing: ActiveResponse, details: Event) -> Event:
        return self.response("response.done", playing, status=playing.status or "completed", details=details)

    @override
    def noise_frames(self) -> list[Event]:
        return [{"type": "heartbeat"}, {"type": "unheard.of", "event_id": "event_0", "what": {"ever": [1]}}]

    def on_closed(self) -> None:
        """Cancel the open calls: they cannot be answered on another connection."""
        for call in self.calls.open:
            self.fake.void(call, "made on a connection that is gone")

    # Audio

    async def _audio(self, kind: str, frame: Mapping[str, Any]) -> Problem | None:
        if kind == "input_audio_buffer.append":
            try:
                data = base64.b64decode(frame.get("audio", ""), validate=True)
            except (binascii.Error, TypeError, ValueError):
                return Problem("Invalid 'audio': expected base64.", param="audio")
            await self.receive_audio(data)
        elif kind == "input_audio_buffer.commit":
            if not self.buffered:
                text = "Error committing input audio buffer: buffer too small."
                return Problem(text, "input_audio_buffer_commit_empty", violation=False)
            self.buffered = 0
            text = self.fake.next_utterance()
            self.add_input("user", text)
            self._has_new_input = True
            await self.send_all(self.utterance(text))
        elif kind == "input_audio_buffer.clear":
            self.buffered = 0
            await self.send(self.stamp({"type": "input_audio_buffer.cleared"}))
        else:
            return Problem(f"Invalid value: {kind!r} is not a type of a client's event.", param="type")
        return None
