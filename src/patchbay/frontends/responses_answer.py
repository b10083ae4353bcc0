"""OpenAI Responses: answers as its events, or as one response object."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from patchbay._text import json_object
from patchbay.errors import PatchbayError, UpstreamError
from patchbay.formats.events import CallArguments, CallStart
from patchbay.frontends.base import FrontendEncoder
from patchbay.frontends.responses_request import ResponsesRequest, ToolRoute, encode_summary
from patchbay.models.error_bodies import as_patchbay_error
from patchbay.models.error_bodies import error_body as openai_error_body
from patchbay.models.parts import Answer
from patchbay.models.wire import encode
from patchbay.types import ToolCall

_ECHOED: Final[Mapping[str, Any]] = {
    "background": False, "instructions": None, "max_output_tokens": None, "max_tool_calls": None, "metadata": {},
    "parallel_tool_calls": True, "previous_response_id": None, "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None, "service_tier": "default", "store": True, "temperature": 1.0, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": None,
    "frequency_penalty": 0.0, "presence_penalty": 0.0,
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
        echoed = {**_ECHOED}
        echoed.update(
            (name, _echo(value, _ECHOED[name])) for name, value in given.items() if value is not None and name in _ECHOED
        )
        self.response: dict[str, Any] = {
            "id": new_id("resp"), "object": "response", "created_at": int(time.time()), "completed_at": None,
            "status": "in_progress", "error": None, "incomplete_details": None, "model": given["model"], "output": [],
            "usage": None, **echoed,
        }  # fmt: skip
        self._output: list[dict[str, Any] | None] = []

    def text(self, text: str) -> bytes:
        """See FrontendEncoder."""
        out = self._open_message()
        self._pieces.append(text)
        self._sequence += 1
        return out + _TEXT % (self._sequence - 1, self._item_id, self._item_index, encode(text))

    def reasoning(self, text: str) -> bytes:
        """See FrontendEncoder."""
        out = b""
        if self._item is None or self._item["type"] != "reasoning":
            out = self._close_item() + self._add_item(self._new_item("reasoning"))
            part = {"type": "summary_text", "text": ""}
            out += self._part_event("response.reasoning_summary_part.added", summary_index=0, part=part)
        self._pieces.append(text)
        return out + self._part_event("response.reasoning_summary_text.delta", summary_index=0, delta=text)

    def begin_call(self, part: CallStart) -> bytes:
        """See FrontendEncoder."""
        out = self._close_item()
        item = self._call_item(part.id, part.name)
        index = len(self._output)
        self._calls[part.index] = (item, index, [], _InputText())
        self._output.append(None)
        return out + self._event("response.output_item.added", output_index=index, item=item)

    def arguments(self, part: CallArguments) -> bytes:
        """See FrontendEncoder."""
        item, index, pieces, input_text = self._calls[part.index]
        pieces.append(part.text)
        if item["type"] == "custom_tool_call":
            return self._input_delta(item, index, input_text.feed(part.text))
        if item["type"] != "function_call":
            return b""
        self._sequence += 1
        return _ARGUMENTS % (self._sequence - 1, item["id"].encode(), index, encode(part.text))

    def end_call(self, index: int, call: ToolCall) -> bytes:  # noqa: ARG002
        """See FrontendEncoder."""
        return self._close_call(index, "completed")

    def finish(self, choice: int, reason: str, **more: Any) -> bytes:  # noqa: ARG002
        """See AnswerEncoder."""
        self._note_end(reason, more.get("usage"))
        return self._close_item() + b"".join([self._close_call(place, "incomplete") for place in sorted(self._calls)])

    def usage(self, usage: Any) -> bytes:
        """See AnswerEncoder: it is written with the end."""
        self.response["usage"] = _usage(usage)
        return b""

    def end(self) -> bytes:
        """See AnswerEncoder."""
        out = self.start()
        self._complete()
        event = self._event(f"response.{self.response['status']}", response=self.response)
        self.size = len(event)
        return out + event

    def error(self, error: PatchbayError | str) -> bytes:
        """See AnswerEncoder."""
        error = as_patchbay_error(error)
        out = self.start()
        self.response |= {"status": "failed", "error": {"code": error.code, "message": str(error)}, "output": self._items()}
        return out + self._event("response.failed", response=self.response)

    def whole(self, answer: Answer) -> bytes:
        """See AnswerEncoder."""
        first = answer.first
        self._note_end(first.finish or "stop", answer.usage)
        if reasoning := first.reasoning:
            self._output.append(_done(self._new_item("reasoning"), reasoning))
        if text := first.text:
            self._output.append(_done(self._new_item("message"), text))
        for call in first.all_calls:
            item, arguments = self._call_item(call.id, call.name), call.raw_arguments
            whole = _InputText().end(arguments)[0] if item["type"] == "custom_tool_call" else arguments
            status: Literal["completed", "incomplete"] = "completed" if isinstance(call, ToolCall) else "incomplete"
            self._output.append(_done_call(item, arguments, whole, status))
        self._complete()
        body = encode(self.response)
        self.size = len(body)
        return body

    # items

    def _new_id(self, prefix: str) -> str:
        """Return an id for the next item: the response's own with the item's index."""
        return f"{prefix}_{self.response['id'][5:]}{len(self._output):02x}"

    def _call_item(self, call_id: str, name: str) -> dict[str, Any]:
        route = self._routes.get(name) or ToolRoute("function", name)
        if route.kind == "custom":
            item = {"id": self._new_id("ctc"), "type": "custom_tool_call", "call_id": call_id, "name": route.name, "input": ""}
        elif route.kind == "tool_search":
            return {
                "id": self._new_id("tsc"), "type": "tool_search_call", "call_id": call_id, "execution": "client", "arguments": {},
                "status": "in_progress",
            }  # fmt: skip
        else:
            item = {"id": self._new_id("fc"), "type": "function_call", "call_id": call_id, "name": route.name, "arguments": ""}
        if route.namespace is not None:
            item["namespace"] = route.namespace
        return {**item, "status": "in_progress"}

    def _new_item(self, kind: Literal["message", "reasoning"]) -> dict[str, Any]:
        if kind == "reasoning":
            return {"id": self._new_id("rs"), "type": "reasoning", "summary": []}
        return {"id": self._new_id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}

    def _open_message(self) -> bytes:
        if self._item is not None and self._item["type"] == "message":
            return b""
        out = self._close_item()
        out += self._add_item(self._new_item("message"))
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return out + self._part_event("response.content_part.added", content_index=0, part=part)

    def _add_item(self, item: dict[str, Any]) -> bytes:
        out = self.start()
        self._item = item
        self._pieces = []
        self._item_index = len(self._output)
        self._item_id = item["id"].encode()
        self._output.append(None)
        return out + self._event("response.output_item.added", output_index=self._item_index, item=item)

    def _close_item(self) -> bytes:
        """Write the end of the open item of text or reasoning."""
        item, text = self._item, "".join(self._pieces)
        if item is None:
            return self.start()
        done = _done(item, text)
        if item["type"] == "message":
            out = self._part_event("response.output_text.done", content_index=0, text=text, logprobs=[])
            out += self._part_event("response.content_part.done", content_index=0, part=done["content"][0])
        else:
            out = self._part_event("response.reasoning_summary_text.done", summary_index=0, text=text)
            out += self._part_event("response.reasoning_summary_part.done", summary_index=0, part=done["summary"][0])
        self._output[self._item_index] = done
        self._item = None
        return out + self._event("response.output_item.done", output_index=self._item_index, item=done)

    def _close_call(self, place: int, status: Literal["completed", "incomplete"]) -> bytes:
        item, index, pieces, input_text = self._calls.pop(place)
        text = whole = "".join(pieces)
        where = {"item_id": item["id"], "output_index": index}
        out = b""
        if item["type"] == "function_call":
            out = self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=text)
        elif item["type"] == "custom_tool_call":
            whole, rest = input_text.end(text)
            out = self._input_delta(item, index, rest) + self._event("response.custom_tool_call_input.done", **where, input=whole)
        done = self._output[index] = _done_call(item, text, whole, status)
        return out + self._event("response.output_item.done", output_index=index, item=done)

    def _note_end(self, reason: str, usage: Any) -> None:
        if (why := _INCOMPLETE.get(reason)) is not None:
            self.response["incomplete_details"] = {"reason": why}
        if usage:
            self.response["usage"] = _usage(usage)

    def _input_delta(self, item: Mapping[str, Any], index: int, text: str) -> bytes:
        kind = "response.custom_tool_call_input.delta"
        return self._event(kind, item_id=item["id"], output_index=index, delta=text) if text else b""

    def _items(self) -> list[dict[str, Any]]:
        return [item for item in self._output if item is not None]

    def _complete(self) -> None:
        status = "completed" if self.response["incomplete_details"] is None else "incomplete"
        self.response |= {"status": status, "completed_at": int(time.time()), "output": self._items()}
        self.complete = True

    # events

    def start(self) -> bytes:
        """Write the first events, unless they are written already."""
        if self._started:
            return b""
        self._started = True
        return self._event("response.created", response=self.response) + self._event(
            "response.in_progress", response=self.response
        )

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        assert self._item is not None
        return self._event(kind, item_id=self._item["id"], output_index=self._item_index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        event = encode({"type": kind, "sequence_number": self._sequence - 1, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), event)


def _echo(given: Any, default: Any) -> Any:
    """Return a field that repeats the request's, with the missing members of an object filled in."""
    return {**default, **given} if isinstance(given, dict) and isinstance(default, dict) else given


class CompactionEncoder(ResponsesEncoder):
    """Writes a compacted conversation: the user's messages, and an item with the model's summary of all ``items``."""

    def __init__(self, request: ResponsesRequest, items: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(request)
        self._compacted = items

    def whole(self, answer: Answer) -> bytes:
        """See AnswerEncoder. Raises UpstreamError if the model wrote no summary."""
        summary = answer.first.text.strip()
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
        usage = _usage(answer.usage or {})
        created = int(time.time())
        return encode(
            {"id": self.response["id"], "object": "response.compaction", "created_at": created, "output": output, "usage": usage}
        )


def _done_call(item: dict[str, Any], arguments: str, whole: str, status: Literal["completed", "incomplete"]) -> dict[str, Any]:
    """Return the finished item of a call; ``whole`` is a custom tool's text."""
    done = {**item, "status": status}
    if item["type"] == "custom_tool_call":
        return {**done, "input": whole}
    return {**done, "arguments": arguments if item["type"] == "function_call" else json_object(arguments) or {}}


def _done(item: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the finished item of a message or of reasoning."""
    if item["type"] == "reasoning":
        return {**item, "summary": [{"type": "summary_text", "text": text}]}
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {**item, "status": "completed", "content": [part]}


def error_body(error: PatchbayError) -> bytes:
    """OpenAI's error body."""
    return encode(openai_error_body(error))


def _usage(usage: Any) -> dict[str, Any] | None:
    """Return usage in this API's fields; 0 if the upstream sent none."""
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": _count(usage.get("prompt_tokens_details"), "cached_tokens"),
            "cache_write_tokens": 0,
        },
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens")},
        "total_tokens": _count(usage, "total_tokens") or prompt + completion,
    }


def _count(holder: Any, name: str) -> int:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) else 0


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
