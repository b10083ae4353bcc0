"""A checkpoint's ``response_template``: how its replies are parsed, as declared in its own ``tokenizer_config.json``.

The shape is that of the Transformers library (version 1): *fields*, each a region of the reply with an opening and a closing
marker, a parser for the text between them, and a template for the resulting value. Differences, for the sake of streaming:

- the field without an opening takes what no other claims, and text is never dropped, with or without such a field;
- a region that cannot be read is text, not an error; ``optional`` and ``defaults`` are checked and have no effect on reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from patchbay.formats.checkpoint.declarations import (
    Declaration,
    Match,
    Pattern,
    compile_literals,
    compile_pattern,
    kind_of,
    names_of,
    parse_pattern,
    refuse,
)
from patchbay.formats.values.json_strict import as_json, json_text, read_json

Trim = Literal["", "line", "space"]

_MAX_NESTING = 4


@dataclass(frozen=True)
class Text:
    """The text itself. ``strip``: without the white space around it."""

    strip: bool = True

    def read(self, body: str) -> Any:
        """Return the value of a region's text."""
        return body.strip() if self.strip else body


@dataclass(frozen=True)
class Number:
    """A number: ``int``, ``float`` or ``bool`` (true for ``true`` and ``1``, in any case)."""

    kind: str

    def read(self, body: str) -> Any:
        """Return the value of a region's text."""
        word = body.strip()
        if self.kind == "bool":
            return word.lower() in ("true", "1")
        number = int(word) if self.kind == "int" else float(word)
        if number != number or number in (float("inf"), float("-inf")):
            raise ValueError(f"{word!r} is no number that JSON knows")
        return number


@dataclass(frozen=True)
class Json:
    """JSON, or a dialect of it.

    ``unquoted_keys``: keys need no quotes. ``string_delims``: other delimiters of strings, without escapes. ``allow_non_json``:
    text that is not JSON stays text.
    """

    unquoted_keys: bool = False
    string_delims: tuple[tuple[str, str], ...] = ()
    allow_non_json: bool = False

    @property
    def strict(self) -> bool:
        """True for plain JSON, whose text can be forwarded as it is read."""
        return not (self.unquoted_keys or self.string_delims or self.allow_non_json)

    def json(self, body: str) -> str:
        """Convert to plain JSON; plain JSON stays unchanged. Raises ValueError."""
        text = "".join(self._plain(body)) if self.unquoted_keys or self.string_delims else body.strip()
        read_json(text)
        return text

    def read(self, body: str) -> Any:
        """Return the value of a region's text."""
        try:
            return read_json("".join(self._plain(body)) if self.unquoted_keys or self.string_delims else body)
        except ValueError:
            if self.allow_non_json:
                return body.strip()
            raise

    def _plain(self, body: str) -> Iterator[str]:
        closers = dict(self.string_delims)
        openers = "|".join(map(re.escape, sorted(closers, key=len, reverse=True))) or "(?!)"
        keys = r"[{,]\s*\w+\s*:" if self.unquoted_keys else "(?!)"
        token = re.compile(f'(?P<mark>{openers})|(?P<quote>")|{keys}')
        at = 0
        while found := token.search(body, at):
            yield body[at : found.start()]
            at = found.end()
            if found["mark"]:
                closer = closers[found["mark"]]
                end = body.find(closer, at)
                if end < 0:
                    raise ValueError(f"{found['mark']!r} is never closed")
                yield json_text(body[at:end])
                at = end + len(closer)
            elif found["quote"]:
                end = _end_of_string(body, at)
                yield body[found.start() : end]
                at = end
            else:
                yield _WORD.sub(r'"\g<0>"', found.group())
        yield body[at:]


@dataclass(frozen=True)
class Tags:
    """A sequence of tags, each a key and its value, with anything between them.

    A tag is a match of ``head`` (with the key as its group ``key``), the value up to the next ``tail``, and the tail. ``left``
    and
    ``right``: which white space at that end of a value is markup, all of it or a line break. Of a repeated key the last value is
    kept, or with ``merge`` all values as a list.
    """

    head: Pattern
    tail: str
    left: Trim = ""
    right: Trim = ""
    value: Content | None = None
    merge: bool = False

    def pairs(self, body: str) -> Iterator[tuple[str, str]]:
        """Yield each key with its value's text."""
        at = 0
        while (head := self._head(body, at)) is not None:
            end = body.find(self.tail, head.end)
            if end < 0:
                return
            at = end + len(self.tail)
            yield head.groups["key"], _trim(body[head.end : end], self.left, self.right)

    def is_whole(self, body: str) -> bool:
        """True if the text ends outside of a tag, so that no value was cut off."""
        at = body.rfind(self.tail) + len(self.tail) if self.tail in body else 0
        if self._head(body, at) is not None:
            return False
        starts = self.head.starts
        ends = (body[begin:] for begin in range(max(at, len(body) - max(map(len, starts)) + 1), len(body)))
        return not any(start.startswith(end) for end in ends for start in starts)

    def _head(self, body: str, at: int) -> Match | None:
        """Return the next tag's head."""
        start = re.compile("|".join(map(re.escape, self.head.starts)))
        while found := start.search(body, at):
            head = self.head.match(body, found.start())
            if isinstance(head, Match) and "key" in head.groups:
                return head
            at = found.end()
        return None

    def read(self, body: str) -> Any:
        """Return the value of a region's text."""
        return _collect(self.pairs(body), self.value, merge=self.merge)


@dataclass(frozen=True)
class Lines:
    """A line for each key and its value. ``line``, ``sign``: the separators of lines, and of a key and its value."""

    line: str = "\n"
    sign: str = ":"
    strip: bool = True
    value: Content | None = None

    def pairs(self, body: str) -> Iterator[tuple[str, str]]:
        """Yield each key with its value's text; lines without the sign are skipped."""
        for line in body.split(self.line):
            key, sign, value = line.partition(self.sign)
            if sign:
                yield (key.strip(), value.strip()) if self.strip else (key, value)

    def read(self, body: str) -> Any:
        """Return the value of a region's text."""
        return _collect(self.pairs(body), self.value, merge=False)


Content = Text | Number | Json | Tags | Lines

NAMES = ("text", "int", "float", "bool", "json", "xml-inline", "kv-lines")
"""Names of the content parsers in templates."""


def content(name: str, arguments: Declaration, nesting: int = 0) -> Content:
    """Return the content parser of a name with its arguments. Raises ConfigurationError with the argument's path."""
    if name == "json":
        made: Content = Json(
            arguments.flag("unquoted_keys", default=False),
            _delimiters(arguments),
            arguments.flag("allow_non_json", default=False),
        )
    elif name == "xml-inline":
        made = _tags(arguments, nesting)
    elif name == "kv-lines":
        made = Lines(
            arguments.text("line_sep", "\n"),
            arguments.text("kv_sep", ":"),
            arguments.flag("strip", default=True),
            _value_parser(arguments, nesting),
        )
    else:
        strip = arguments.flag("strip", default=True)
        made = Text(strip) if name == "text" else Number(name)
    arguments.done()
    return made


def _trim(value: str, left: Trim, right: Trim) -> str:
    value = value.lstrip() if left == "space" else value.removeprefix("\n") if left else value
    return value.rstrip() if right == "space" else value.removesuffix("\n") if right else value


def _delimiters(arguments: Declaration) -> tuple[tuple[str, str], ...]:
    value = arguments.take("string_delims", [])
    pairs: list[Any] = value if isinstance(value, list) else [None]
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(mark, str) and mark for mark in pair):
            arguments.refuse("string_delims", "must be a list of pairs, each [opening text, closing text]")
    return tuple((opening, closing) for opening, closing in pairs)


def _value_parser(arguments: Declaration, nesting: int) -> Content | None:
    if "value_parser" not in arguments:
        return None
    if nesting == _MAX_NESTING:
        arguments.refuse("value_parser", f"is nested more than {_MAX_NESTING} deep")
    parser = arguments.table("value_parser")
    made = content(parser.one_of("name", NAMES, "text"), parser.table("args"), nesting + 1)
    parser.done()
    return made


_VALUE = re.compile(r"(\\s\*\??)?\(\?P<value>(?:\.[*+]\?|\[\^(?:\\.|[^\]\\])+\][*+]\??)\)(\\s\*\??)?")
"""The value in a tag's pattern, with the white space around it: ``.*?`` or ``.+?``, or a run of all but some characters."""
_LAST_SPACE = re.compile(r"\\s\*\??\Z")


def _tags(arguments: Declaration, nesting: int) -> Tags:
    """Split a ``tag_pattern`` at its value: the head before it, and the text that ends the value behind it."""
    text, path = arguments.text("tag_pattern"), arguments.at("tag_pattern")
    if sorted(names_of(text, path)) != ["key", "value"]:
        arguments.refuse("tag_pattern", "must have the named groups 'key' and 'value', and no others")
    value = _VALUE.search(text)
    head = text[: value.start()] if value else ""
    if value is None or head.count("(") != head.count(")"):
        arguments.refuse("tag_pattern", "must have its value as (?P<value>.*?), not inside of another group")
    tail = parse_pattern(_LAST_SPACE.sub("", text[value.end() :]), path)
    if len(tail) != 1 or len(tail[0]) != 1 or not tail[0][0].text or tail[0][0].quantifier:
        arguments.refuse("tag_pattern", "must have literal text behind the value, which ends it")
    return Tags(
        head=compile_pattern(head, path),
        tail=tail[0][0].text,
        left="space" if value[1] else "",
        right="space" if value[2] else "",
        value=_value_parser(arguments, nesting),
        merge=arguments.flag("merge_duplicates", default=False),
    )


def _collect(pairs: Iterator[tuple[str, str]], value: Content | None, *, merge: bool) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for key, text in pairs:
        found.setdefault(key, []).append(text if value is None else value.read(text))
    return {key: values if merge and len(values) > 1 else values[-1] for key, values in found.items()}


def _end_of_string(body: str, at: int) -> int:
    """Return the position behind the quote that ends a JSON string; ``at`` is behind the one that begins it."""
    for found in _STRING_PART.finditer(body, at):
        if found.group() == '"':
            return found.end()
    raise ValueError("a string is never closed")


_WORD = re.compile(r"\w+")
_STRING_PART = re.compile(r'\\.|"', re.DOTALL)


def raw_texts(parser: Content, body: str) -> Mapping[str, str] | None:
    """Return each key's text as the model wrote it, if the parser reads keys and none is repeated; else None."""
    if not isinstance(parser, Tags | Lines):
        return None
    pairs = list(parser.pairs(body))
    return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else None


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
    """A parsed call. ``raw``: each argument's text as the model wrote it, if the template has a marker for each.

    Such texts have no types of their own: if the tool is known, its schema types them, not ``arguments``.
    """

    name: str
    arguments: str
    raw: Mapping[str, str] | None


@dataclass(frozen=True)
class Field:
    """One kind of region. ``open``: None for the field that takes what no other claims. ``close``: None for one without an end.

    ``transform``, ``each``: the shape of its value, for the whole value or for each item of a list.
    """

    name: str
    role: Role
    open: Pattern | None
    close: Pattern | None
    content: Content
    transform: Any
    each: bool

    @property
    def streams(self) -> bool:
        """True if the body is, unchanged, the arguments of a call that the opener names."""
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
        """Return a region's value: its text, parsed and transformed. ``groups``: captured by its markers. Raises ValueError."""
        value = self.content.read(body)
        if self.transform is None:
            return value
        if not self.each:
            return _fill_in(self.transform, {**groups, "content": value})
        items = [value] if isinstance(value, Mapping) else value
        if not isinstance(items, list) or not all(isinstance(one, Mapping) for one in items):
            raise ValueError(f"{self.name} must hold a list of objects")
        return [_fill_in(self.transform, {**groups, **one}) for one in items]

    def calls(self, body: str, groups: Mapping[str, str]) -> list[ReadCall]:
        """Return the calls in a region. Raises ValueError if it holds anything else."""
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
        """Return the call's name if the opener has it, "" if the body does."""
        function = _function(self.transform)
        named = function.get("name") if function else None
        if not isinstance(named, str):
            return ""
        found = _PLACEHOLDER.fullmatch(named)
        return named if found is None else groups.get(found[1], "")


@dataclass(frozen=True)
class ResponseTemplate:
    """A whole template. ``start_anchor``, ``defaults``, ``optional``, ``repeats`` and ``join`` are checked and have no effect."""

    fields: tuple[Field, ...]


def response_template(value: object, path: str = "response_template") -> ResponseTemplate:
    """Read a template from parsed JSON. Raises ConfigurationError that names the wrong field by its path."""
    declared = Declaration(value, path)
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
    return ResponseTemplate(fields)


def _check_anchor(declared: Declaration) -> None:
    if "start_anchor" in declared and "start_anchor_pattern" in declared:
        declared.refuse("start_anchor", "and start_anchor_pattern exclude each other")
    if "start_anchor_pattern" in declared:
        names_of(declared.text("start_anchor_pattern"), declared.at("start_anchor_pattern"))
    elif not declared.texts("start_anchor"):
        declared.refuse("start_anchor", "is missing (or start_anchor_pattern)")


def _field(name: str, fields: Declaration) -> Field:
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
    declared.flag("optional", default=True)
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
    field = Field(name, role, opening, closing, parser, transform, each)
    if role == "calls":
        _check_calls(field, declared)
    return field


def _mark(declared: Declaration, literal: str, pattern: str) -> Pattern | None:
    if literal in declared and pattern in declared:
        declared.refuse(literal, f"and {pattern} exclude each other")
    if pattern in declared:
        return compile_pattern(declared.text(pattern), declared.at(pattern))
    literals = declared.texts(literal)
    return compile_literals(literals, declared.at(literal)) if literals else None


def _check_calls(field: Field, declared: Declaration) -> None:
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
    """Return the description of a call's function in a transform, if it is written out."""
    function = transform.get("function") if isinstance(transform, Mapping) else None
    return function if isinstance(function, Mapping) else None


def _check_transform(transform: object, path: str, names: set[str] | None) -> None:
    """Reject placeholders that are mixed with other text, and those that nothing fills.

    ``names``: what can be filled in; None if that depends on the reply.
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


def _fill_in(transform: Any, scope: Mapping[str, Any]) -> Any:
    if isinstance(transform, Mapping):
        return {key: _fill_in(inner, scope) for key, inner in transform.items()}
    if isinstance(transform, list):
        return [_fill_in(inner, scope) for inner in transform]
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
    """Return the call in a value shaped like an API's message, or like its function alone. Raises ValueError."""
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
