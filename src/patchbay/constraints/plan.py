"""The constraint of a request: from its tools and policy, its format, and what the server takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from patchbay.cache import SizedCache
from patchbay.constraints.backends import Backend, Constraint
from patchbay.constraints.calls import OfferedTool
from patchbay.constraints.forms import ANY_OBJECT, ChoiceForm, Form
from patchbay.constraints.gbnf import NoGrammarError
from patchbay.constraints.json_schema import call_schema
from patchbay.constraints.replies import ReplyRules, reply_grammar
from patchbay.constraints.schemas import Compiled, compile_schema
from patchbay.constraints.spans import Spans
from patchbay.formats.render import Writer
from patchbay.types import ToolSpec

_MAX_GRAMMAR: Final = 512 * 1024
"""Characters of a grammar; a larger one is not sent."""


class ConstraintPlanner:
    """Makes the constraints of requests with the same tools and format. Grammars are kept, but those with spans."""

    def __init__(self, specs: Sequence[ToolSpec], writer: Writer) -> None:
        self._specs = specs
        self._writer = writer
        self._made: SizedCache[tuple[Backend, ReplyRules, frozenset[str] | None], Constraint] = SizedCache(
            most=8, most_bytes=4 * _MAX_GRAMMAR
        )

    @cached_property
    def _tools(self) -> list[OfferedTool]:
        return [OfferedTool(spec, compile_schema(spec.parameters)) for spec in self._specs]

    @cached_property
    def unenforced(self) -> tuple[str, ...]:
        """The keywords of the tools' schemas that no grammar enforces, each with its tool and place."""
        return tuple(f"{tool.spec.name}: {each}" for tool in self._tools for each in tool.unenforced)

    def constraint(
        self, backend: Backend, rules: ReplyRules, *, names: frozenset[str] | None = None, copied_from: str | None = None
    ) -> Constraint:
        """Return the constraint for a backend.

        ``names``: of these tools alone. ``copied_from``: the text that strings and numbers are copied from.
        """
        if copied_from is not None and backend is not Backend.SCHEMA:
            return self._make(backend, rules, names, Spans(copied_from))
        key = (backend, rules, names)
        if (made := self._made.get(key)) is None:
            made = self._make(backend, rules, names, None)
            size = sum(_MAX_GRAMMAR if made.kind == "schema" else len(str(value)) for value in made.fields.values())
            self._made.put(key, made, size)
        return made

    def _make(self, backend: Backend, rules: ReplyRules, names: frozenset[str] | None, spans: Spans | None) -> Constraint:
        tools = [tool for tool in self._tools if names is None or tool.spec.name in names]
        if backend is Backend.SCHEMA:
            if not rules.needed:
                return Constraint({}, "the server takes a schema only, which has no place for text beside calls")
            schema = {"name": "call", "strict": True, "schema": call_schema(tools)}
            return Constraint({"response_format": {"type": "json_schema", "json_schema": schema}})
        if spans is not None:
            tools = _fitted(tools, spans)
        try:
            grammar = reply_grammar(self._writer, tools, rules, spans)
        except NoGrammarError as error:
            return Constraint({}, str(error))
        if len(grammar) > _MAX_GRAMMAR:
            return Constraint({}, f"the grammar would have {len(grammar)} characters, more than {_MAX_GRAMMAR}")
        return Constraint(backend.fields(grammar))


def answer_form(schema: Mapping[str, Any] | None) -> Form:
    """Return the form of an answer in a ``response_format``; None: any object."""
    return ANY_OBJECT if schema is None else compile_schema(schema).form


def _fitted(tools: list[OfferedTool], spans: Spans) -> list[OfferedTool]:
    """Return the tools that take most of what the conversation evidently has, with the arguments that it has.

    Of those that take as much, the ones with most words of their names in it; then those that need the fewest guesses.
    """
    fitted: list[tuple[OfferedTool, tuple[int, ...]]] = []
    for tool in tools:
        try:
            forms, (evidence, meant) = spans.fit(tool.objects)
        except NoGrammarError:
            return tools
        form = forms[0] if len(forms) == 1 else ChoiceForm(forms)
        fitted.append((OfferedTool(tool.spec, Compiled(form)), (evidence, spans.mentions(tool.spec.name), meant)))
    most = max(evidence for _, evidence in fitted)
    return [tool for tool, evidence in fitted if evidence == most]
