"""OpenAI Responses: answers as its events, or as one response object."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from patchbay._text import json_object
from patchbay.errors import PatchbayError, UpstreamError
from patchbay.formats.events import CallArguments, CallStart
from patchbay.frontends.base import FrontendEncoder, tokens_of
from patchbay.frontends.responses_request import CALL_FORMS, ResponsesRequest, ToolRoute, encode_summary
from patchbay.models.error_bodies import error_body
from patchbay.models.parts import Answer, AnswerChoice, AnswerHead
from patchbay.models.upstream_errors import status_of
from patchbay.models.wire import encode
from patchbay.types import ToolCall

_ECHOED: Final[Mapping[str, Any]] = {
    "background": False, "instructions": None, "max_output_tokens": None, "metadata": {},
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None, "store": True, "temperature": 1.0, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_p": 1.0, "user": None, "frequency_penalty": 0.0, "presence_penalty": 0.0,
}  # fmt: skip
"""The fields of a response that repeat the request's, with their defaults."""
_TEXT: Final = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d,"item_id":"%s",'
    b'"output_index":%d,"content_index":0,"delta":%s,"logprobs":[]}\n\n'
)
_ARGUMENTS: Final = (
    b'event: response.function_call_arguments.delta\ndata: {"type":"response.function_call_arguments.delta","sequence_number":%d,'
    b'"item_id":"%s","output_index":%d,"delta":%s}\n\n'
)
_MEMBERS: Final = {form.item: form.member for form in CALL_FORMS.values()}
_INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}


def new_id(prefix: str) -> str:
    """Return a unique id."""
    return f"{prefix}_{secrets.token_hex(16)}"


class ResponsesEncoder(FrontendEncoder):
    """Writes the events of a streamed response, or a whole response.

    ``response`` is the object so far; its ``output`` has the complete items. ``complete``: all is written; ``size`` is then the
    number of bytes of the object.
    """

    def __init__(self, request: ResponsesRequest) -> None:
        super().__init__()
        given = request.given
        self.items = request.items
        """The items of the request and of the responses that it continues."""
        self.complete = False
        self.size = 0
        self._routes = request.routes
        self._sequence = 0
        self._started = False
        self._item: dict[str, Any] | None = None
        """The item of text or reasoning that is being written."""
        self._item_index = 0
        self._item_id = b""
        self._pieces: list[str] = []
        self._calls: dict[int, tuple[dict[str, Any], int, list[str], _InputText]] = {}
        """The open calls by their places: the item, its index, the pieces of its arguments, and the plain text in them."""
        echoed = {name: _echo(value, _ECHOED[name]) for name, value in given.items() if value is not None and name in _ECHOED}
        self.response: dict[str, Any] = {
            "id": new_id("resp"), "object": "response", "created_at": int(time.time()), "completed_at": None,
            "status": "in_progress", "error": None, "incomplete_details": None, "model": given["model"], "output": [],
            "usage": None, "service_tier": "default", "truncation": "disabled", "top_logprobs": 0, "max_tool_calls": None,
            **_ECHOED, **echoed,
        }  # fmt: skip
        self._output: list[dict[str, Any] | None] = []

    def begin_answer(self, head: AnswerHead) -> None:
        # The response says what was done, not what was asked for.
        super().begin_answer(head)
        if head.service_tier is not None:
            self.response["service_tier"] = head.service_tier
        for parameter, field, name in (("reasoning_effort", "reasoning", "effort"), ("verbosity", "text", "verbosity")):
            if parameter in head.left_out and name in self.response[field]:
                self.response[field] = {**self.response[field], name: _ECHOED[field].get(name)}

    def text(self, text: str) -> bytes:
        out = self._open_item("message")
        self._pieces.append(text)
        self._sequence += 1
        return out + _TEXT % (self._sequence - 1, self._item_id, self._item_index, encode(text))

    def reasoning(self, text: str) -> bytes:
        out = self._open_item("reasoning")
        self._pieces.append(text)
        return out + self._part_event("response.reasoning_summary_text.delta", delta=text)

    def begin_call(self, part: CallStart) -> bytes:
        out = self._close_item()
        item = self._call_item(part.id, part.name)
        index = len(self._output)
        self._calls[part.index] = (item, index, [], _InputText())
        self._output.append(None)
        return out + self._event("response.output_item.added", output_index=index, item=item)

    def arguments(self, part: CallArguments) -> bytes:
        item, index, pieces, input_text = self._calls[part.index]
        pieces.append(part.text)
        if item["type"] == "custom_tool_call":
            return self._input_delta(item, index, input_text.feed(part.text))
        if item["type"] != "function_call":
            return b""
        self._sequence += 1
        return _ARGUMENTS % (self._sequence - 1, item["id"].encode(), index, encode(part.text))

    def end_call(self, index: int, call: ToolCall) -> bytes:  # noqa: ARG002
        return self._close_call(index, "completed")

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:
        super().finish(choice, reason, **more)
        return self._close_item() + b"".join([self._close_call(place, "incomplete") for place in sorted(self._calls)])

    def end_answer(self) -> bytes:
        out = self.write_first_events()
        self._complete()
        event = self._event(f"response.{self.response['status']}", response=self.response)
        self.size = len(event)
        return out + event

    def error(self, error: PatchbayError | str) -> bytes:
        described, out = error_body(error)["error"], self.write_first_events()
        failure = {name: described[name] for name in ("code", "message")}
        self.response |= {"status": "failed", "error": failure, "output": self._items()}
        return out + self._event("response.failed", response=self.response)

    def whole(self, answer: Answer) -> bytes:
        body = super().whole(answer)
        self.size = len(body)
        return body

    def document(self, choice: AnswerChoice) -> dict[str, Any]:
        if reasoning := choice.reasoning:
            self._output.append(_done(self._new_item("reasoning"), reasoning))
        if text := choice.text:
            self._output.append(_done(self._new_item("message"), text))
        for call in choice.all_calls:
            item, arguments = self._call_item(call.id, call.name), call.raw_arguments
            whole = _InputText().end(arguments)[0] if item["type"] == "custom_tool_call" else arguments
            self._output.append(_done_call(item, whole, "completed" if isinstance(call, ToolCall) else "incomplete"))
        self._complete()
        return self.response

    # items

    def _new_id(self, prefix: str) -> str:
        """Return an id for the next item: the response's own with the item's index, by which the item is found again."""
        return f"{prefix}_{self.response['id'][5:]}{len(self._output):02x}"

    def _call_item(self, call_id: str, name: str) -> dict[str, Any]:
        route = self._routes.get(name) or ToolRoute("function", name)
        form = route.form
        item = {"id": self._new_id(form.prefix), "type": form.item, "call_id": call_id, **form.fixed}
        if route.kind in ("function", "custom"):
            item |= {"name": route.name, form.member: ""}
        else:
            item[form.member] = {**form.defaults}
        if route.namespace is not None:
            item["namespace"] = route.namespace
        return {**item, "status": "in_progress"}

    def _new_item(self, kind: str) -> dict[str, Any]:
        if kind == "reasoning":
            return {"id": self._new_id("rs"), "type": kind, "summary": []}
        return {"id": self._new_id("msg"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}

    def _open_item(self, kind: str) -> bytes:
        """Begin an item of text or reasoning, unless one of its kind is open."""
        if self._item is not None and self._item["type"] == kind:
            return b""
        out = self._close_item()
        item = self._item = self._new_item(kind)
        self._pieces = []
        self._item_index = len(self._output)
        self._item_id = item["id"].encode()
        self._output.append(None)
        out += self._event("response.output_item.added", output_index=self._item_index, item=item)
        return out + self._part_event(f"{_PARTS[kind].part}.added", part=_PARTS[kind].of(""))

    def _close_item(self) -> bytes:
        """Write the end of the open item of text or reasoning."""
        item, text = self._item, "".join(self._pieces)
        if item is None:
            return self.write_first_events()
        form, done = _PARTS[item["type"]], _done(item, text)
        out = self._part_event(f"{form.text}.done", text=text, **form.more)
        out += self._part_event(f"{form.part}.done", part=form.of(text))
        self._output[self._item_index] = done
        self._item = None
        return out + self._event("response.output_item.done", output_index=self._item_index, item=done)

    def _close_call(self, place: int, status: Literal["completed", "incomplete"]) -> bytes:
        item, index, pieces, input_text = self._calls.pop(place)
        text = "".join(pieces)
        where = {"item_id": item["id"], "output_index": index}
        out = b""
        if item["type"] == "function_call":
            out = self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=text)
        elif item["type"] == "custom_tool_call":
            text, rest = input_text.end(text)
            out = self._input_delta(item, index, rest) + self._event("response.custom_tool_call_input.done", **where, input=text)
        done = self._output[index] = _done_call(item, text, status)
        return out + self._event("response.output_item.done", output_index=index, item=done)

    def _input_delta(self, item: Mapping[str, Any], index: int, text: str) -> bytes:
        kind = "response.custom_tool_call_input.delta"
        return self._event(kind, item_id=item["id"], output_index=index, delta=text) if text else b""

    def _items(self) -> list[dict[str, Any]]:
        return [item for item in self._output if item is not None]

    def _complete(self) -> None:
        reason = _INCOMPLETE.get(self._finish)
        self.response |= {
            "status": "incomplete" if reason else "completed", "incomplete_details": {"reason": reason} if reason else None,
            "completed_at": int(time.time()), "output": self._items(), "usage": _usage(self._usage),
        }  # fmt: skip
        self.complete = True

    # events

    def write_first_events(self) -> bytes:
        """Write the first events, unless they are written already."""
        if self._started:
            return b""
        self._started = True
        events = [self._event(f"response.{name}", response=self.response) for name in ("created", "in_progress")]
        return b"".join(events)

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        assert self._item is not None
        index = {_PARTS[self._item["type"]].place: 0}
        return self._event(kind, item_id=self._item["id"], output_index=self._item_index, **index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        event = encode({"type": kind, "sequence_number": self._sequence - 1, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), event)


def _echo(given: Any, default: Any) -> Any:
    """Return a field that repeats the request's, with the missing members of an object filled in."""
    return {**default, **given} if isinstance(given, dict) and isinstance(default, dict) else given


def completed_fields(text: str, usage: Mapping[str, Any] | None, ended_at: float) -> dict[str, Any]:
    """Return the fields of a response that was completed with this text, ``ended_at`` seconds since 1970."""
    content = [_PARTS["message"].of(text)]
    item = {"id": new_id("msg"), "type": "message", "status": "completed", "role": "assistant", "content": content}
    return {"status": "completed", "completed_at": int(ended_at), "output": [item], "usage": _usage(usage)}


class CompactionEncoder(ResponsesEncoder):
    """Writes a compacted conversation: the user's messages, and an item with the model's summary of all ``items``."""

    def __init__(self, request: ResponsesRequest, items: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(request)
        self._compacted = items

    def document(self, choice: AnswerChoice) -> dict[str, Any]:
        summary = choice.text.strip()
        if not summary:
            raise UpstreamError("The model wrote no summary of the conversation.")
        output: list[dict[str, Any]] = []
        for item in self._compacted:
            if item.get("type", "message") == "message" and item.get("role") == "user":
                content = item.get("content")
                parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
                message = {"id": self._new_id("msg"), "type": "message", "status": "completed", "role": "user", "content": parts}
                output.append(message)
        output.append({"id": new_id("cmp"), "type": "compaction", "encrypted_content": encode_summary(summary)})
        return {
            "id": self.response["id"], "object": "response.compaction", "created_at": int(time.time()), "output": output,
            "usage": _usage(self._usage or {}),
        }  # fmt: skip


def _done_call(item: dict[str, Any], written: str, status: Literal["completed", "incomplete"]) -> dict[str, Any]:
    """Return the finished item of a call; ``written`` are its arguments, or a custom tool's text."""
    name = _MEMBERS[item["type"]]
    value = written if item[name] == "" else {**item[name], **(json_object(written) or {})}
    return {**item, "status": status, name: value}


class _PartForm(NamedTuple):
    """How a part of an item is written: the names of its events and of its index, and its members beside the text."""

    part: str
    text: str
    place: str
    kind: str
    more: Mapping[str, Any]

    def of(self, text: str) -> dict[str, Any]:
        """Return a part."""
        return {"type": self.kind, "text": text, **({"annotations": []} if self.more else {}), **self.more}


_PARTS: Final = {
    "message": _PartForm("response.content_part", "response.output_text", "content_index", "output_text", {"logprobs": []}),
    "reasoning": _PartForm(
        "response.reasoning_summary_part", "response.reasoning_summary_text", "summary_index", "summary_text", {}
    ),
}
"""By the type of the item."""


def _done(item: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the finished item of a message or of reasoning."""
    parts = [_PARTS[item["type"]].of(text)]
    return {**item, "summary": parts} if item["type"] == "reasoning" else {**item, "status": "completed", "content": parts}


def encode_error(error: PatchbayError) -> tuple[int, bytes]:
    """Return OpenAI's status and body for an error."""
    return status_of(error), encode(error_body(error))


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return usage in this API's fields; None if the upstream sent none."""
    if usage is None:
        return None
    tokens = tokens_of(usage)
    return {
        "input_tokens": tokens.prompt, "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
        "output_tokens": tokens.completion, "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.total,
    }  # fmt: skip


_TEXT_BEGIN: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_TEXT_INSIDE: Final = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+'
)
"""The decodable beginning of a JSON string: complete escapes, and both halves of a surrogate pair."""
_MOST_UNREAD: Final = 100


class _InputText:
    """The plain text in the arguments of a custom tool's call, ``{"input": TEXT}``, read piece by piece."""

    def __init__(self) -> None:
        self._read: list[str] = []
        self._rest = ""
        self._state: Literal["before", "inside", "over"] = "before"

    def feed(self, piece: str) -> str:
        """Read a piece of the arguments; return its text."""
        if self._state == "over":
            return ""
        self._rest += piece
        if self._state == "before" and (begin := _TEXT_BEGIN.match(self._rest)) is not None:
            self._rest = self._rest[begin.end() :]
            self._state = "inside"
        text = ""
        if self._state == "inside":
            inside = _TEXT_INSIDE.match(self._rest)
            assert inside is not None  # (it matches the empty string too)
            self._rest = self._rest[inside.end() :]
            try:
                text = json.loads(f'"{inside[0]}"', strict=False)
            except ValueError:  # an escape that JSON does not know
                self._state = "over"
        if len(self._rest) > _MOST_UNREAD:
            self._state = "over"
        if text:
            self._read.append(text)
        return text

    def end(self, arguments: str) -> tuple[str, str]:
        """Return the whole text, and its part not returned by ``feed``; ``arguments`` are complete.

        Arguments that are not such an object are the text themselves, unless they were cut off.
        """
        read = "".join(self._read)
        value = (json_object(arguments) or {}).get("input")
        whole = value if isinstance(value, str) else read or arguments
        return whole, whole[len(read) :] if whole.startswith(read) else ""
