"""Answers of a given type, together with tools: the model gives its answer by calling a tool that takes nothing else.

What lives here: that tool. What does not: when an agent offers it (``llm_agent``), and what is done with the answer (``work``).
By way of a tool, an answer that does not fit is refused with a word on what is wrong, and asked for again, on every model that
can call tools at all, text-only ones included.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

from patchbay.errors import ConfigurationError, ToolArgumentsError
from patchbay.tools import Tool, ToolContext, Validation

ANSWER_TOOL: Final = "give_answer"
_ONLY: Final = "answer"

REMINDER: Final = f"Give your answer by calling the tool {ANSWER_TOOL!r}, and in no other way."
"""What a model is told that answered in words."""


class AnswerTool(Tool):
    """``give_answer``: its arguments are the answer, as ``output_schema`` says (any type that pydantic knows).

    What is no object in JSON is given under the name ``answer``.
    """

    acts = False

    def __init__(self, output_schema: Any) -> None:
        self._type = output_schema
        super().__init__(
            ANSWER_TOOL,
            "Give your final answer. Call this once, when you have all that you need; nothing comes after it.",
            strict=False,
        )

    @cached_property
    def _adapter(self) -> Any:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

        from patchbay.schema.annotations import known

        if inspect.isroutine(self._type):
            raise ConfigurationError(f"output_schema must be a type, not a function ({self._type!r}).")
        try:
            adapter: Any = TypeAdapter(known(self._type))
            adapter.json_schema()
        except (PydanticUserError, PydanticSchemaGenerationError) as error:
            raise ConfigurationError(f"output_schema cannot be expressed in JSON: {error}") from error
        return adapter

    @cached_property
    def _schema(self) -> Mapping[str, Any]:
        schema: Mapping[str, Any] = self._adapter.json_schema()
        return schema

    @cached_property
    def _is_object(self) -> bool:
        return self._schema.get("type") == "object"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The schema of the answer; ``$defs`` stay at the root."""
        if self._is_object:
            return self._schema
        inner = {key: value for key, value in self._schema.items() if key != "$defs"}
        whole: dict[str, Any] = {"type": "object", "properties": {_ONLY: inner}, "required": [_ONLY]}
        if "$defs" in self._schema:
            whole["$defs"] = self._schema["$defs"]
        return whole

    def check(self) -> None:
        """Raise ConfigurationError for a type that JSON cannot express."""
        _ = self.spec

    def validate(self, raw_arguments: str, validation: Validation | None) -> dict[str, Any]:  # noqa: ARG002  (there is one way)
        """Return the answer in JSON's types, as its type writes it. Raises ToolArgumentsError."""
        from pydantic import ValidationError

        from patchbay.schema.complaints import pydantic_complaints

        given = self._unchecked(raw_arguments)
        if not self._is_object:
            if _ONLY not in given:
                raise ToolArgumentsError(self.name, raw_arguments=raw_arguments, details=(f"{_ONLY}: is required",))
            given = given[_ONLY]
        try:
            answer = self._adapter.validate_json(json.dumps(given))
        except ValidationError as error:
            raise ToolArgumentsError(self.name, raw_arguments=raw_arguments, details=pydantic_complaints(error, given)) from None
        return {_ONLY: self._adapter.dump_python(answer, mode="json", by_alias=True)}

    def read(self, text: str) -> Any:
        """Return the answer that a model wrote as text. Raises ToolArgumentsError, and ValueError for what is no JSON."""
        try:
            value = json.loads(text.strip().removeprefix("```json").removeprefix("```").removesuffix("```"))
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not self._is_object and not (isinstance(value, dict) and value.keys() == {_ONLY}):
            value = {_ONLY: value}
        return self.validate(json.dumps(value), None)[_ONLY]

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:  # noqa: ARG002  (it has no use for one)
        """Return the answer."""
        return arguments[_ONLY]
