"""What a client is told of a turn: one completion of several rounds, whole or as a stream.

The text of all rounds is one text, with a blank line between those of two rounds; its client sees it as it comes. Where JSON was
asked for (``response_format``), only the last round's counts, since both together would be none. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from patchbay.executor import ToolExecution
from patchbay.loop import FinalEvent, UserOutputEvent
from patchbay.models.wire import DONE, Envelope, encode
from patchbay.server.media_urls import signed_path
from patchbay.tools.excerpt import excerpt
from patchbay.types import ToolCall

SHOWN: Final = frozenset({"role", "content", "tool_calls", "reasoning_content"})
"""The fields of a message that every client is told of, also in a stream."""

EXCERPT: Final = 2000
"""How many characters of a call's arguments and of its result the operator is shown."""

_BETWEEN: Final = "\n\n"
_OWN_REASONS: Final = frozenset({"stop", "length", "content_filter", "tool_calls"})
_REASONING: Final = frozenset({"reasoning", "reasoning_content"})


class Said:
    """The text of several rounds. With ``only_last`` that of the last round alone, which is known when it is over."""

    def __init__(self, *, only_last: bool = False) -> None:
        self._only_last = only_last
        self._pieces: list[str] = []
        self._is_over = False

    def add(self, text: str) -> str:
        """Take a piece in; return what may be shown of it now."""
        if self._is_over:
            self._is_over = False
            if self._only_last:
                self._pieces.clear()
            elif self._pieces:
                text = _BETWEEN + text
        self._pieces.append(text)
        return "" if self._only_last else text

    def add_apart(self, text: str) -> str:
        """Take in what is not the model's, as a paragraph of its own; return what may be shown of it now."""
        self.round_over()
        shown = self.add(text) if text and not self._only_last else ""
        self.round_over()
        return shown

    def round_over(self) -> None:
        """Note that what follows is another round's."""
        self._is_over = True

    @property
    def unshown(self) -> str:
        """What ``add`` has kept back."""
        return self.text if self._only_last else ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)


class StreamedAnswer:
    """The chunks of a stream, in the envelope of the first one that came from upstream."""

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._opened = False

    def delta(self, envelope: Envelope, delta: Mapping[str, Any], *, logprobs: Any = None) -> bytes:
        """A chunk; the first one says the role."""
        told = delta if self._opened else {"role": "assistant", **delta}
        self._opened = True
        return envelope.delta(0, told, logprobs=b"null" if logprobs is None else encode(logprobs))

    def end(
        self,
        envelope: Envelope,
        *,
        rest: str,
        pending: Sequence[ToolCall],
        finish_reason: str,
        usage: Mapping[str, Any] | None,
        report: Mapping[str, Any],
    ) -> bytes:
        """All that is left: ``rest`` of the text, the client's calls, why it ended, what was done, what it cost."""
        out = [self.delta(envelope, {"content": rest})] if rest or not (self._opened or pending) else []
        for index, call in enumerate(pending):
            out.append(self.delta(envelope, {"tool_calls": [{"index": index, **call.to_openai()}]}))
        out.append(envelope.finish(0, finish_reason, patchbay=report))
        if self._include_usage and usage is not None:
            out.append(envelope.usage(usage))
        return b"".join([*out, DONE])


def whole_answer(
    last: Mapping[str, Any],
    *,
    content: str,
    reasoning: str,
    pending: Sequence[ToolCall],
    finish_reason: str,
    usage: Mapping[str, Any] | None,
    report: Mapping[str, Any],
) -> bytes:
    """A completion: ``last``, the upstream's own of the last round, with what the turn came to."""
    choices = last.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], Mapping) else {}
    said = choice.get("message")
    message: dict[str, Any] = {
        key: value
        for key, value in (said.items() if isinstance(said, Mapping) else ())
        if key != "tool_calls" and key not in _REASONING
    }
    message |= {"role": "assistant", "content": content or (None if pending else "")}
    if reasoning:
        message["reasoning_content"] = reasoning
    if pending:
        message["tool_calls"] = [call.to_openai() for call in pending]
    answer: dict[str, Any] = {"id": "chatcmpl-patchbay", "created": 0, "model": "", **last, "object": "chat.completion"}
    answer["choices"] = [{"logprobs": None, **choice, "index": 0, "message": message, "finish_reason": finish_reason}]
    if usage is not None:
        answer["usage"] = usage
    return encode({**answer, "patchbay": report})


def told_reason(end: FinalEvent) -> str:
    """Return OpenAI's word for why a turn ended. A limit is "length": it ended before the answer did; so is none a hook ended."""
    if end.aborted is not None:
        return "content_filter"
    return end.finish_reason if end.finish_reason in _OWN_REASONS else "length"


def report_of(role: str, revision: int, end: FinalEvent, outputs: Sequence[UserOutputEvent]) -> dict[str, Any]:
    """Return what the answer's ``patchbay`` says: whose tools of which revision, which calls, and the limit that ended it.

    Where tools had something for the user that is there too, and where a hook ended the turn, which one and why.
    """
    report: dict[str, Any] = {"role": role, "revision": revision, "calls": [_call(each) for each in end.tool_executions]}
    if outputs:
        report["outputs"] = [_output(each) for each in outputs]
    if end.aborted is not None:
        report["aborted"] = {"by": end.aborted.hook, "point": end.aborted.point, "reason": end.aborted.reason}
    return report if end.finish_reason in _OWN_REASONS else {**report, "limit": end.finish_reason}


def summed(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return what all rounds cost together, details too; None where none of them said."""
    if not usages:
        return None
    total = dict(usages[0])
    for usage in usages[1:]:
        total = _added(total, usage)
    return total


def _added(total: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(total)
    for key, value in usage.items():
        before = out.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            out[key] = _added(before, value)
        elif _is_number(value) and _is_number(before):
            out[key] = before + value
        elif value is not None:
            out[key] = value
    return out


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _output(shown: UserOutputEvent) -> dict[str, Any]:
    return {
        "call_id": shown.tool_call.id,
        "text": excerpt(shown.text, EXCERPT),
        "media": [{"ref": ref, "path": signed_path(ref)} for ref in shown.media],
        "handled": shown.handled,
    }


def _call(execution: ToolExecution) -> dict[str, Any]:
    return {
        "id": execution.call.id,
        "name": execution.call.name,
        "arguments": excerpt(execution.call.raw_arguments, EXCERPT),
        "content": excerpt(execution.content, EXCERPT),
        "is_error": execution.is_error,
        "code": execution.result.code,
        "seconds": round(execution.seconds, 6),
    }
