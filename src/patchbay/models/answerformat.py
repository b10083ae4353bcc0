"""``response_format`` beside tools: what the model is told of it, and whether its answer fits.

A server that enforces a schema by a grammar lets its model write no call. So while calls are possible the schema is stated in the
prompt; it is enforced where the answer alone is asked for. Pure: no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from patchbay.models.wire import decode, encode

if TYPE_CHECKING:
    from patchbay.schema.validation import SchemaValidator

_MOST_REMEMBERED: Final = 64 * 1024
_MOST_READ: Final = 4096
_FENCED: Final = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
_FORMAT: Final = (
    r"(?:response[_ ]?format|json[_ ](?:mode|schema|object|response|output)|response mime ?type|structured output|grammar)"
)
_NOT_TAKEN: Final = (
    r"(?:not|n't|un)[ -]?(?:yet )?(?:support|available|allow|permit|compatible|implement)|unsupported|unavailable|incompatible"
    r"|cannot|can't|can not|together|at the same time|combin|unknown|unrecogni[sz]ed|unexpected"
)
_REFUSAL: Final = re.compile(rf"{_FORMAT}[^\n]{{0,100}}(?:{_NOT_TAKEN})|(?:{_NOT_TAKEN})[^\n]{{0,100}}{_FORMAT}", re.IGNORECASE)
_BAD_SCHEMA: Final = re.compile(r"invalid[_ ](?:json[_ ])?schema", re.IGNORECASE)


class AnswerFormat:
    """A ``response_format`` that asks for JSON; ``schema`` is None where any object will do."""

    def __init__(self, schema: Mapping[str, Any] | None, written: str) -> None:
        self._schema = schema
        self._what = f"one JSON value that fits this JSON Schema: {written}" if schema is not None else "one JSON object"

    @property
    def instruction(self) -> str:
        """What stands in the prompt while tools may be called."""
        return (
            "# Form of the answer\n\nWhen you need no tool any more and answer, your whole answer must be JSON, without any text "
            f"around it and without a code fence. It must be {self._what}\n\nThis concerns your answer alone: call tools as "
            "before, whenever you need them."
        )

    def demand(self, complaint: str = "") -> str:
        """What asks for the answer alone."""
        begin = f"Your answer does not fit: {complaint}. Give it again" if complaint else "Give your answer now"
        return f"{begin} as JSON, with nothing before and nothing behind it. It must be {self._what}"

    def read(self, text: str, *, check_schema: bool = True) -> tuple[str | None, str]:
        """The JSON text of an answer that fits, or None and what is wrong with it. A code fence around it is taken off."""
        text = text.strip()
        if fenced := _FENCED.fullmatch(text):
            text = fenced[1].strip()
        try:
            value = msgspec.json.decode(text)  # strict: a client's parser takes no NaN
        except (ValueError, RecursionError):
            return None, "it is not JSON" if text else "it is empty"
        if self._schema is None:
            return (text, "") if isinstance(value, dict) else (None, "it is not a JSON object")
        complaints = self._validator.error_messages(value) if check_schema else ()
        return (None, "; ".join(complaints)) if complaints else (text, "")

    @cached_property
    def _validator(self) -> SchemaValidator:
        from patchbay.schema.validation import SchemaValidator  # heavy, and needed only where an answer is checked

        return SchemaValidator("response_format", self._schema or {})


def read_answer_format(raw: bytes) -> AnswerFormat | None:
    """Read the field; small ones once. None where it asks for no JSON, or for what only the upstream can judge."""
    return _remembered(raw) if len(raw) <= _MOST_REMEMBERED else _read(raw)


def _read(raw: bytes) -> AnswerFormat | None:
    value = decode(raw)
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object":
        return AnswerFormat(None, "")
    given = value.get("json_schema") if kind == "json_schema" else None
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        return None
    return AnswerFormat(schema, encode(schema).decode())


_remembered = lru_cache(maxsize=64)(_read)


def refuses_format(status: int, text: str) -> bool:
    """Whether an upstream's error says that it does not take ``response_format`` here, and not that its schema is wrong."""
    text = text[:_MOST_READ]
    return status in (400, 422, 500) and _REFUSAL.search(text) is not None and _BAD_SCHEMA.search(text) is None
