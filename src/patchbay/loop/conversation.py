"""The conversation of one turn as it grows, in a form that every server accepts.

Duplicate or missing call ids, and names and arguments that a server would reject, are repaired in this view, never in the record
of what the model wrote (laws 1, 2, 7). Files of results are sent for one turn, the newest first, within ``MOST_FILES`` and
``MOST_CHARS``. A file that is left out is replaced by a note and stays out; if there are too many, the oldest go, and some more
with them, so that a request stays a prefix of the next one for as long as possible (prompt cache).
"""

from __future__ import annotations

import json
import re
import uuid
from asyncio import CancelledError
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from patchbay.executor import Run, ToolExecution
from patchbay.executor.results import NOT_BEGUN, error_for_model
from patchbay.models.chat_model import ChatRequest
from patchbay.schema import read_arguments
from patchbay.tools import well_formed
from patchbay.tools.output import introduction, is_introduction
from patchbay.transcript import insert_results, tool_calls
from patchbay.types import NO_USAGE, IncompleteCall, Message, Reply, ToolCall, ToolResult, ToolSpec, Usage

MOST_FILES: Final = 16
"""The most files of results in a request."""

MOST_CHARS: Final = 28 * 1024 * 1024
"""The most characters of base64 in them: 21 MiB in files."""

LEFT_OUT: Final = (
    f"(It is left out: a request has the newest files of the turn, {MOST_FILES} of {MOST_CHARS * 3 // 4 >> 20} MiB together at "
    "most. To see this one, get it again.)"
)
"""The replacement of a file that is not sent (any more)."""

_LOW_MARK: Final = 0.75
"""The part of the limits that is used after files were removed."""

_Files = dict[int, int]
"""The files of a message that are sent: their index among the parts, and their characters."""


class AttachmentWindow:
    """The files of results that are sent with ``messages``; call ``add`` for each further message with files."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._sent: dict[int, _Files] = {}
        self._views: dict[int, Message] = {}
        places = [
            place
            for place, message in enumerate(messages)  # (every message of every turn comes here)
            if isinstance(message, dict) and type(message.get("content")) is list and _is_of_results(messages, place)
        ]
        if not places:
            return
        own = set(places)
        last_user = max((place for place, each in enumerate(messages) if _role(each) == "user" and place not in own), default=-1)
        for place in places:
            if place > last_user:
                self.add(messages, place)
            else:
                self._views[place] = _without(messages[place], {})

    def add(self, messages: Sequence[Message], place: int) -> None:
        """Add the files of the message at ``place``, which are the newest."""
        files = self._sent[place] = _files_of(messages[place])
        if not _fit((files,), 1):
            count = chars = 0
            for part, size in list(files.items()):
                if count == MOST_FILES or chars + size > MOST_CHARS:
                    del files[part]
                else:
                    count, chars = count + 1, chars + size
            self._views[place] = _without(messages[place], files)
        if _fit(self._sent.values(), 1):
            return
        for older in [each for each in self._sent if each != place]:
            if _fit(self._sent.values(), _LOW_MARK):
                break
            del self._sent[older]
            self._views[older] = _without(messages[older], {})

    def view(self, messages: Sequence[Message]) -> list[Message]:
        """Return a new list of the messages for the model."""
        view = list(messages)
        for place, message in self._views.items():
            view[place] = message
        return view


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _is_of_results(messages: Sequence[Message], place: int) -> bool:
    """Whether a message has the files of results, written by ``files_message`` in this turn or another."""
    first = messages[place]["content"][:1]
    is_behind = place > 0 and _role(messages[place - 1]) == "tool" and _role(messages[place]) == "user"
    return is_behind and bool(first) and is_introduction(_text(first[0]))


def _files_of(message: Message) -> _Files:
    return {at: _chars(part) for at, part in enumerate(message["content"]) if _text(part) is None}


def _text(part: Any) -> Any:
    return part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None


def _chars(part: Any) -> int:
    """Return the number of characters in all texts of a part."""
    if isinstance(part, Mapping):
        return sum(map(_chars, part.values()))
    return len(part) if isinstance(part, str) else 0


def _fit(sent: Iterable[_Files], share: float) -> bool:
    sizes = [size for files in sent for size in files.values()]
    return len(sizes) <= MOST_FILES * share and sum(sizes) <= MOST_CHARS * share


def _without(message: Message, sent: _Files) -> Message:
    """Return a message with a note in place of each file that is not in ``sent``."""
    parts = [
        part if at in sent or _text(part) is not None else {"type": "text", "text": LEFT_OUT}
        for at, part in enumerate(message["content"])
    ]
    return {**message, "content": parts}


DELIVERED = "Requested output delivered via tool attachment."
"""The history's text of an answer that a tool has given to the user."""

# Function names that every server accepts.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

_NONE: Final[frozenset[str]] = frozenset()


@dataclass
class Conversation:
    """The conversation of one turn as it grows, and its executions and tokens."""

    messages: list[Message]
    parameters: dict[str, Any]
    run: Run
    external: tuple[ToolSpec, ...] = ()
    executions: list[ToolExecution] = field(default_factory=list)
    usage: Usage = NO_USAGE

    def __post_init__(self) -> None:
        # The run's own set: parallel agents must not use the same ids.
        self._ids = self.run.call_ids
        for message in self.messages:
            for call in tool_calls(message) if "tool_calls" in message else ():
                if isinstance(call_id := call.get("id"), str):
                    self._ids.add(call_id)
        self._external_names = frozenset(spec.name for spec in self.external) if self.external else _NONE
        self._files = AttachmentWindow(self.messages)

    def request(self, tool_choice: Any, *, stream: bool) -> ChatRequest:
        """Return the next request. Its list is a copy, so that a recorded request does not change."""
        specs = self.run.specs
        if self.external:
            # First, since the run's may grow at the end: a request stays a prefix of the next one.
            specs = (*self.external, *(spec for spec in specs if spec.name not in self._external_names))
        return ChatRequest(self._files.view(self.messages), specs, tool_choice if specs else None, self.parameters, stream)

    def external_calls(self, calls: Sequence[ToolCall | IncompleteCall]) -> tuple[ToolCall, ...]:
        """Return those of ``calls`` that the caller runs. An incomplete one gets an error instead."""
        names = self._external_names
        return tuple(call for call in calls if isinstance(call, ToolCall) and call.name in names) if names else ()

    def add_reply(self, reply: Reply, usage: Usage) -> list[ToolCall | IncompleteCall]:
        """Append the assistant's message; return its calls, each with an id that is unique in this conversation."""
        written = [*(self._runnable(call) for call in reply.tool_calls), *reply.incomplete]
        calls = [self._with_own_id(call) for call in written]
        known = {*self.run.tools, *self._external_names} if self.external else self.run.tools
        self.messages.append(reply_message(reply, calls, known))
        self.usage += usage
        return calls

    def add_unfinished(self, text: str) -> None:
        """Append the unfinished text of a model whose time was up."""
        if text:
            self.messages.append({"role": "assistant", "content": well_formed(text)})

    def add_results(self, executions: Sequence[ToolExecution]) -> None:
        """Append the results, in call order, and their attachments."""
        self.executions.extend(executions)
        is_attached = False
        for execution in executions:
            result = execution.result
            self.messages.append(result.to_message())
            is_attached = is_attached or bool(result.attachments)
        if is_attached:
            self.messages.append(files_message([execution.result for execution in executions]))
            self._files.add(self.messages, len(self.messages) - 1)

    def answer_as_cancelled(self, calls: Sequence[ToolCall]) -> None:
        """Insert results for external calls that the caller will not run, because the turn is over."""
        results = [ToolResult(call.id, call.name, error_for_model(call.name, CancelledError())[0] + NOT_BEGUN) for call in calls]
        self.messages = insert_results(self.messages, [result.to_message() for result in results])

    def add_delivered(self) -> None:
        """Append a note that the user has the answer already."""
        self.messages.append({"role": "assistant", "content": DELIVERED})

    def _runnable(self, call: ToolCall) -> ToolCall | IncompleteCall:
        """Return a call as it may be run: no executor checks the arguments of the caller's tools, so they must be an object."""
        arguments = call.raw_arguments
        if call.name not in self._external_names or _is_object(arguments):
            return call
        return IncompleteCall(call.id, call.name, arguments, arguments)

    def _with_own_id(self, call: ToolCall | IncompleteCall) -> ToolCall | IncompleteCall:
        # Some servers send no ids, some count from 0 in every answer, and some send ids that cannot be sent back.
        if not call.id or call.id in self._ids or well_formed(call.id) != call.id:
            call = replace(call, id=f"call_{uuid.uuid4().hex[:24]}")
        self._ids.add(call.id)
        return call


def reply_message(reply: Reply, calls: Sequence[ToolCall | IncompleteCall], tools: Container[str]) -> Message:
    """Return an assistant's message that a server accepts. ``calls`` are the reply's, with their ids in this conversation.

    ``tools`` has the names of the tools that it may call.
    """
    message: Message = {
        **(_sendable(reply.extra) if reply.extra else {}),
        "role": "assistant",
        # Without calls a text is required, if only an empty one.
        "content": well_formed(reply.content) if reply.content else (reply.content if calls else ""),
    }
    if calls:
        message["tool_calls"] = [_sent(call, tools) for call in calls]
    return message


def files_message(results: Sequence[ToolResult]) -> Message:
    """Return the user's message with the results' attachments: a ``tool`` message may only have text."""
    parts: list[dict[str, Any]] = []
    for result in results:
        for number, attachment in enumerate(result.attachments, 1):
            parts += [{"type": "text", "text": introduction(number, result.call_id)}, attachment.to_openai()]
    return {"role": "user", "content": parts}


def sendable_call(call_id: str, name: str, arguments: str, extra: Mapping[str, Any], tools: Container[str]) -> dict[str, Any]:
    """Return a call that a server accepts: many reject arguments that are not an object, and unusual names of unknown tools.

    ``arguments`` is the text that the model wrote, ``tools`` has the names of the tools that it may call.
    """
    if name not in tools and not _SAFE_NAME.match(name):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unknown"
    arguments = well_formed(arguments) if _is_object(arguments) else "{}"
    return {**extra, "id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _sent(call: ToolCall | IncompleteCall, tools: Container[str]) -> dict[str, Any]:
    extra = call.extra if isinstance(call, ToolCall) else None
    return sendable_call(call.id, call.name, call.raw_arguments, _sendable(extra) if extra else {}, tools)


def _sendable(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the extra members for the server, with lone surrogates replaced."""
    text = json.dumps(extra, ensure_ascii=False)
    written = well_formed(text)
    return extra if written == text else json.loads(written)


def _is_object(text: str) -> bool:
    import msgspec  # here, so that a runner is made without it

    try:
        if isinstance(msgspec.json.decode(text), dict):
            return True  # stricter than the other parser, and faster
    except (ValueError, RecursionError):
        pass
    try:
        read_arguments(text)
    except ValueError:
        return False
    return text.lstrip().startswith("{")
