"""Contents as messages for models, and back.

A session's messages are, byte for byte, the same in later turns, so that the server's prompt cache holds: text that does not
follow from the data is stored with them (``FunctionCall.written``, ``FunctionResponse.shown``). Files of results are sent in
their turn only; later turns have a note instead.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from patchbay.agents.content import Blob, Content, FunctionCall, FunctionResponse, Part
from patchbay.agents.json_copy import json_copy
from patchbay.errors import ToolTimeoutError
from patchbay.executor import ToolExecution
from patchbay.loop.conversation import LEFT_OUT, sendable_call
from patchbay.tools import render_result
from patchbay.tools.output import introduction, is_introduction
from patchbay.tools.results import describe
from patchbay.types import Attachment, Message, Reply, ToolCall

_ERROR = "Error: "
_MESSAGE_MEMBERS = {"role", "content", "tool_calls", "name"}
_CALL_MEMBERS = {"id", "type", "function", "index"}


def _write(arguments: Any) -> str:
    return msgspec.json.encode(arguments).decode()


def to_messages(contents: Iterable[Content], tools: Container[str] = ()) -> list[Message]:
    """Return contents as OpenAI's messages, without the model's thoughts, but with the extra data that its server wants back.

    ``tools`` has the names of the tools that the model may call; other names are written so that every server accepts them.
    """
    messages: list[Message] = []
    for content in contents:
        if content.role == "model":
            if (message := _assistant(content, tools)) is not None:
                messages.append(message)
            continue
        user_parts = []
        for part in content.parts:
            if (response := part.function_response) is not None:
                text = response.shown if response.shown is not None else response_text(response.response)
                messages.append({"role": "tool", "tool_call_id": response.id or response.name, "content": text})
            elif part.text is not None or part.inline_data is not None:
                user_parts.append(part)
        if user_parts:
            messages.append({"role": "user", "content": _user(user_parts)})
    return messages


def without_old_files(contents: Sequence[Content]) -> Sequence[Content]:
    """Return a session's contents without the files of earlier turns' results, before they would be encoded as base64."""
    with_files = {
        at
        for at, content in enumerate(contents)
        if content.role == "user" and content.parts and is_introduction(content.parts[0].text)
    }
    if not with_files:
        return contents
    last = max((at for at, content in enumerate(contents) if at not in with_files and is_question(content)), default=0)
    return [_without_files(content) if at < last and at in with_files else content for at, content in enumerate(contents)]


def is_question(content: Content) -> bool:
    """Whether this is a message of the user."""
    return content.role == "user" and all(part.function_response is None for part in content.parts)


def _without_files(content: Content) -> Content:
    return Content(content.role, [part if part.inline_data is None else Part(LEFT_OUT) for part in content.parts])


def from_messages(messages: Sequence[Message]) -> list[Content]:
    """Return messages as contents, without system messages: the inverse of ``to_messages``."""
    contents: list[Content] = []
    names: dict[str, str] = {}
    for message in messages:
        role = message["role"]
        if role == "assistant":
            content = _model(message)
            names |= {part.function_call.id: part.function_call.name for part in content.parts if part.function_call is not None}
            contents.append(content)
        elif role == "tool":
            call_id, text = message["tool_call_id"], message["content"]
            response = FunctionResponse(names.get(call_id, ""), {"result": text}, call_id, text)
            if contents and contents[-1].role == "user" and contents[-1].parts[-1].function_response is not None:
                contents[-1].parts.append(Part(function_response=response))
            else:
                contents.append(Content("user", [Part(function_response=response)]))
        elif role == "user":
            contents.append(Content("user", _parts(message["content"])))
    return contents


def reply_content(reply: Reply, calls: Sequence[ToolCall]) -> Content:
    """Return a model's reply as a content: its thoughts, its text, its ``calls``."""
    parts = [Part(reply.reasoning, thought=True)] if reply.reasoning else []
    if reply.content is not None:
        parts.append(Part(reply.content))
    if calls:
        parts += [
            Part(function_call=as_function_call(call), extra_content=dict(call.extra) if call.extra else None) for call in calls
        ]
    return Content("model", parts, dict(reply.extra) if reply.extra else None)


def content_reply(content: Content) -> Reply:
    """Return a content, such as a callback's, as the reply of a model."""
    renew_calls([content])
    calls = tuple(
        ToolCall(part.function_call.id, part.function_call.name, _arguments(part.function_call), part.extra_content)
        for part in content.parts
        if part.function_call is not None
    )
    thoughts = "".join(part.text for part in content.parts if part.text and part.thought)
    return Reply(content.text or None, thoughts or None, calls, extra=content.extra_content)


def as_function_call(call: ToolCall) -> FunctionCall:
    """Return a call as a FunctionCall."""
    raw = call.raw_arguments
    try:
        arguments = msgspec.json.decode(raw)
        if isinstance(arguments, dict):
            return FunctionCall(call.name, arguments, call.id, None if raw == _write(arguments) else raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    return FunctionCall(call.name, call.arguments, call.id, raw)


def renew_calls(contents: Iterable[Content]) -> None:
    """Clear ``written`` of calls whose arguments a callback has changed."""
    for call in (part.function_call for content in contents for part in content.parts if part.function_call is not None):
        if call.written is not None and call.args != as_function_call(ToolCall(call.id, call.name, call.written)).args:
            call.written = None


def _arguments(call: FunctionCall) -> str:
    return call.written if call.written is not None else _write(json_copy(call.args))


def response_part(execution: ToolExecution) -> Part:
    """Return the result of a call as a part: the tool's value as a dict, or ``{"error": …}``."""
    result = execution.result
    response = _response(execution)
    shown = None if response_text(response) == result.content else result.content
    return Part(function_response=FunctionResponse(result.name, response, result.call_id, shown))


def result_parts(execution: ToolExecution) -> list[Part]:
    """Return ``response_part`` and the result's images and files, each after an introduction, as in the loop."""
    parts = [response_part(execution)]
    for number, attachment in enumerate(execution.result.attachments, 1):
        parts.append(Part(introduction(number, execution.result.call_id)))
        parts.append(Part(inline_data=Blob(attachment.media_type, attachment.data, attachment.name)))
    return parts


def response_text(response: dict[str, Any]) -> str:
    """Return the text of a response for a model, if ``shown`` is None."""
    if len(response) == 1:
        if "result" in response:
            return render_result(response["result"])
        if isinstance(error := response.get("error"), str):
            return error if error.startswith(_ERROR) else f"{_ERROR}{error}"
    return render_result(response)


def _response(execution: ToolExecution) -> dict[str, Any]:
    if execution.error is not None:
        # A tool's exception and a timeout are written as in the agents' contract. Advice for the model is in ``shown``.
        if execution.result.code == "tool_error":
            return {"error": describe(execution.error)}
        if execution.result.code == ToolTimeoutError.code:
            return {"error": str(execution.error)}
        return {"error": execution.result.content.removeprefix(_ERROR)}
    value = execution.value
    if value is None or type(value) is bool:
        return {"result": value}
    # Parsed from the text for the model: an iterator can be read only once, and a long result is shortened in the log too.
    content = execution.result.content
    if type(value) is not str:
        try:
            parsed = msgspec.json.decode(content)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
        else:
            return parsed if isinstance(parsed, dict) else {"result": parsed}
    return {"result": content}


def _assistant(content: Content, tools: Container[str]) -> Message | None:
    """Return the model's message; None if there is nothing to send (a thought alone)."""
    texts = [part.text for part in content.parts if part.text is not None and not part.thought]
    calls = [
        sendable_call(
            call.id or call.name,
            call.name,
            _arguments(call),
            deepcopy(part.extra_content) if part.extra_content else {},
            tools,
        )
        for part in content.parts
        if (call := part.function_call) is not None
    ]
    if not calls and not any(texts):
        return None
    message: Message = {"role": "assistant", "content": "".join(texts) if texts else None}
    if content.extra_content:
        message = {**deepcopy(content.extra_content), **message}
    if calls:
        message["tool_calls"] = calls
    return message


def _model(message: Message) -> Content:
    parts = [Part(message["content"])] if message.get("content") is not None else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        extra = {key: value for key, value in call.items() if key not in _CALL_MEMBERS}
        made = as_function_call(ToolCall(call["id"], function["name"], function["arguments"]))
        parts.append(Part(function_call=made, extra_content=extra or None))
    return Content("model", parts, {key: value for key, value in message.items() if key not in _MESSAGE_MEMBERS} or None)


def _user(parts: Sequence[Part]) -> Any:
    if len(parts) == 1 and parts[0].inline_data is None:
        return parts[0].text or ""
    if all(part.inline_data is None for part in parts):
        return "\n".join(part.text or "" for part in parts)
    items: list[dict[str, Any]] = []
    for part in parts:
        if part.text is not None:
            items.append({"type": "text", "text": part.text})
        if (blob := part.inline_data) is not None:
            items.append(Attachment(blob.data, blob.mime_type, blob.display_name).to_openai())
    return items


def _parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [Part(content)]
    return [Part(item["text"]) if item["type"] == "text" else Part(inline_data=_blob(item)) for item in content]


def _blob(item: dict[str, Any]) -> Blob:
    """Parse the output of ``Attachment.to_openai``."""
    if item["type"] == "input_audio":
        audio = item["input_audio"]
        return Blob({"wav": "audio/wav", "mp3": "audio/mpeg"}[audio["format"]], base64.b64decode(audio["data"]))
    url = item["image_url"]["url"] if item["type"] == "image_url" else item["file"]["file_data"]
    head, _, data = url.partition(",")
    name = item["file"].get("filename") if item["type"] == "file" else None
    return Blob(head.removeprefix("data:").removesuffix(";base64"), base64.b64decode(data), name)
