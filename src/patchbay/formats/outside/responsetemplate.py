"""A checkpoint's ``response_template``: how its replies are taken apart, as its own ``tokenizer_config.json`` declares it.

The shape is that of the Transformers library (version 1): *fields*, each a region of the reply with an opening and a closing
mark, a parser for what stands between them, and a template for the value that becomes of it. Here it is checked and compiled;
nothing is read of a reply but what a caller hands over. What differs, differs for streams' sake:

- patterns are matched in linear time and over any chunks (``patterns``); what that excludes is refused when the template is read;
- the field without an opening takes what no other claims, and text is never dropped, whether such a field is declared or not;
- a region that cannot be read is text, not an error; ``optional`` and ``defaults`` are checked and have no effect on reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from patchbay.formats.outside.attempts import Pattern
from patchbay.formats.outside.declared import Declared, kind_of, refuse
from patchbay.formats.outside.jsonvalues import as_json
from patchbay.formats.outside.patterns import compile_literals, compile_pattern, parse_pattern
from patchbay.formats.outside.responsecontent import NAMES, Content, Json, Text, content, raw_texts

Role = Literal["content", "reasoning", "calls", "other"]

_ROLES: Mapping[str, Role] = {
    "content": "content",
    "thinking": "reasoning",
    "reasoning": "reasoning",
    "reasoning_content": "reasoning",
    "tool_calls": "calls",
}
_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_FORMAT_VERSION = 1


@dataclass(frozen=True)
class ReadCall:
    """A call that was read. ``raw``: each argument's text as the model wrote it, where the template has a mark for each.

    Such texts have no types of their own: where the tool is known, its schema types them, not ``arguments``.
    """

    name: str
    arguments: str
    raw: Mapping[str, str] | None


@dataclass(frozen=True)
class Field:
    """One kind of region. ``open`` is None for the field that takes what no other claims; ``close`` is None for one without end.

    ``repeats``, ``join``: whether it may come more than once, and what then stands between its texts.
    ``transform``, ``each``: the shape of its value, for the whole of it or for each of a list.
    """

    name: str
    role: Role
    open: Pattern | None
    close: Pattern | None
    content: Content
    repeats: bool
    join: str | None
    optional: bool
    transform: Any
    each: bool

    @property
    def streams(self) -> bool:
        """Whether what is read is the value, character by character.

        So it is with text, and with JSON that is the arguments of a call which the opener names.
        """
        if self.role != "calls":
            return isinstance(self.content, Text)
        function = _function(self.transform)
        return (
            isinstance(self.content, Json)
            and self.content.strict
            and not self.each
            and function is not None
            and function.get("arguments") == "{content}"
            and self._opener_names(function.get("name"))
        )

    def _opener_names(self, placeholder: object) -> bool:
        return self.open is not None and isinstance(placeholder, str) and placeholder[1:-1] in self.open.names

    def read(self, body: str, groups: Mapping[str, str]) -> Any:
        """The value of a region: its text parsed and transformed. ``groups``: what its marks captured. Raises ValueError."""
        value = self.content.read(body)
        if self.transform is None:
            return value
        if not self.each:
            return _filled(self.transform, {**groups, "content": value})
        items = [value] if isinstance(value, Mapping) else value
        if not isinstance(items, list) or not all(isinstance(one, Mapping) for one in items):
            raise ValueError(f"{self.name} must hold a list of objects")
        return [_filled(self.transform, {**groups, **one}) for one in items]

    def calls(self, body: str, groups: Mapping[str, str]) -> list[ReadCall]:
        """The calls in a region. Raises ValueError where it holds something else."""
        if self.streams:
            assert isinstance(self.content, Json)
            name = self.call_name(groups)
            arguments = self.content.json(body) if body.strip() else "{}"
            if not arguments.startswith("{"):
                raise ValueError("the arguments are no object")
            return [ReadCall(name, arguments, None)]
        value = self.read(body, groups)
        calls = [_read_call(one) for one in (value if isinstance(value, list) else [value])]
        if len(calls) == 1 and (raw := raw_texts(self.content, body)) is not None:
            return [ReadCall(calls[0].name, calls[0].arguments, raw)]
        return calls

    def call_name(self, groups: Mapping[str, str]) -> str:
        """The name of the call where the opener tells it; "" where the body does."""
        function = _function(self.transform)
        named = function.get("name") if function else None
        if not isinstance(named, str):
            return ""
        found = _PLACEHOLDER.fullmatch(named)
        return named if found is None else groups.get(found[1], "")


@dataclass(frozen=True)
class ResponseTemplate:
    """A whole template. ``start_anchor``, where the reply begins in a prompt, is checked and not kept: no prompt is read here."""

    fields: tuple[Field, ...]
    defaults: Mapping[str, Any]

    @property
    def rest(self) -> Field | None:
        """The field for what no other claims."""
        return next((field for field in self.fields if field.open is None), None)

    def of_role(self, role: Role) -> tuple[Field, ...]:
        """The fields that make one part of a reply."""
        return tuple(field for field in self.fields if field.role == role)


def response_template(value: object, path: str = "response_template") -> ResponseTemplate:
    """Read a template from parsed JSON. Raises ConfigurationError that names the wrong field by its path."""
    declared = Declared(value, path)
    version = declared.take("version", _FORMAT_VERSION)
    if version != _FORMAT_VERSION or isinstance(version, bool):
        declared.refuse("version", f"is {version!r}; only {_FORMAT_VERSION} is known")
    defaults = declared.take("defaults", {})
    if not isinstance(defaults, Mapping):
        declared.refuse("defaults", f"must be a table, not {kind_of(defaults)}")
    _check_anchor(declared)
    table = declared.table("fields")
    fields = tuple(_field(name, table) for name in table.named())
    declared.done()
    if not fields:
        declared.refuse("fields", "must hold a field at least")
    rest = [field.name for field in fields if field.open is None]
    if len(rest) > 1:
        declared.refuse("fields", f"may hold only one field without 'open' or 'open_pattern', not {', '.join(rest)}")
    return ResponseTemplate(fields, dict(defaults))


def _check_anchor(declared: Declared) -> None:
    if "start_anchor" in declared and "start_anchor_pattern" in declared:
        declared.refuse("start_anchor", "and start_anchor_pattern exclude each other")
    if "start_anchor_pattern" in declared:
        parse_pattern(declared.text("start_anchor_pattern"), declared.at("start_anchor_pattern"))
    elif not declared.texts("start_anchor"):
        declared.refuse("start_anchor", "is missing (or start_anchor_pattern)")


def _field(name: str, fields: Declared) -> Field:
    declared = fields.table(name)
    role = _ROLES.get(name, "other")
    opening, closing = _mark(declared, "open", "open_pattern"), _mark(declared, "close", "close_pattern")
    parser = content(declared.one_of("content", NAMES, "text"), declared.table("content_args"))
    repeats = declared.flag("repeats", default=False)
    join = declared.take("join")
    if join is not None and not isinstance(join, str):
        declared.refuse("join", f"must be text, not {kind_of(join)}")
    if join is not None and not repeats:
        declared.refuse("join", "is of use only with 'repeats': true")
    transform, each = declared.take("transform"), declared.flag("transform_each", default=False)
    captured = tuple(group for mark in (opening, closing) if mark for group in mark.names)
    optional = declared.flag("optional", default=True)
    declared.done()
    if transform is None:
        if each:
            declared.refuse("transform_each", "is of use only with a 'transform'")
        if captured:
            declared.refuse("transform", f"is missing: without it the named groups {', '.join(captured)} lead nowhere")
    else:
        _check_transform(transform, declared.at("transform"), None if each else {*captured, "content"})
    if role == "calls" and opening is None:
        declared.refuse("open", "is missing (or open_pattern): calls must be marked")
    field = Field(name, role, opening, closing, parser, repeats, join, optional, transform, each)
    if role == "calls":
        _check_calls(field, declared)
    return field


def _mark(declared: Declared, literal: str, pattern: str) -> Pattern | None:
    if literal in declared and pattern in declared:
        declared.refuse(literal, f"and {pattern} exclude each other")
    if pattern in declared:
        return compile_pattern(declared.text(pattern), declared.at(pattern))
    literals = declared.texts(literal)
    return compile_literals(literals, declared.at(literal)) if literals else None


def _check_calls(field: Field, declared: Declared) -> None:
    if field.transform is None:
        if not isinstance(field.content, Json):
            declared.refuse("transform", "is missing: nothing says which part of a call is its name")
        return
    function = _function(field.transform)
    if function is None:
        if not (isinstance(field.transform, Mapping) and isinstance(field.transform.get("function"), str)):
            declared.refuse("transform", "must say what a call's 'function' is")
    elif not isinstance(function.get("name"), str):
        declared.refuse("transform", "must say what a call's 'function.name' is")


def _function(transform: object) -> Mapping[str, Any] | None:
    """The description of a call's function in a transform, where it is written out."""
    function = transform.get("function") if isinstance(transform, Mapping) else None
    return function if isinstance(function, Mapping) else None


def _check_transform(transform: object, path: str, names: set[str] | None) -> None:
    """Refuse placeholders that are mixed with other text, and those that nothing fills.

    ``names``: what can be filled in; None where only a reply tells.
    """
    for at, text in _strings(transform, path):
        found = _PLACEHOLDER.fullmatch(text)
        if found is None and _PLACEHOLDER.search(text):
            refuse(at, f"is {text!r}: a placeholder must be the whole text")
        if found and names is not None and (root := found[1].partition(".")[0]) not in names:
            refuse(at, f"is {text!r}, but there is no {root!r}; there is {', '.join(sorted(names))}")


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _strings(inner, f"{path}[{index}]")


def _filled(transform: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(transform, Mapping):
        return {key: _filled(inner, scope) for key, inner in transform.items()}
    if isinstance(transform, list):
        return [_filled(inner, scope) for inner in transform]
    found = _PLACEHOLDER.fullmatch(transform) if isinstance(transform, str) else None
    if found is None:
        return transform
    value: Any = scope
    for key in found[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"there is no {found[1]!r}")
        value = value[key]
    return value


def _read_call(value: Any) -> ReadCall:
    """A call from a value in the shape of an API's message, or from its function alone. Raises ValueError."""
    function = value.get("function", value) if isinstance(value, Mapping) else value
    function = function if isinstance(function, Mapping) else {}
    name, arguments = function.get("name"), function.get("arguments", function.get("parameters"))
    if not isinstance(name, str) or not name:
        raise ValueError("a call has no name")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return ReadCall(name, "{}", None)
    text = Json().json(arguments) if isinstance(arguments, str) else as_json(arguments)
    if not text.startswith("{"):
        raise ValueError("the arguments are no object")
    return ReadCall(name, text, None)
