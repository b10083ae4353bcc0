"""Complete Python values and arguments to JSON: by ``ast``, and by the tool's schema where they are not literals."""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from patchbay.formats.source import NoMatch
from patchbay.formats.values.json_strict import JSON_INTEGER, JSON_NUMBER, JSON_WORDS, PYTHON_WORDS, json_text
from patchbay.formats.values.tool_names import ToolTypes

MAX_NAME = 256
"""Maximum length of an argument's name."""
_PREFIXED = re.compile(r"(?:^|[^\w\\])([rbfu]{1,2})\Z", re.IGNORECASE)
_ESCAPE = re.compile(
    r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(\r?\n)|(['\"\\/abfnrtv_]))|\\"
)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CONSTANTS = {**PYTHON_WORDS, **{word: word for word in JSON_WORDS}}
_LONG_INTEGER = re.compile(r"[+-]?[1-9][0-9_]*[0-9]")
_NUMBER_START = re.compile(r"[+-]?\.?[0-9]")
_MAX_NUMBER = 64
_WARNED = re.compile(r"[0-9](?:and|else|for|if|in|is|not|or)\b")
"""What Python's parser warns about, in code whose strings have no invalid escapes."""
_CONSTRUCTORS = {"dict": "{", "list": "[", "tuple": "[", "set": "["}
_ESCAPED = re.compile(r"""\\(?=[_*'"])""")
_DIGITS = frozenset("-0123456789")
_WRAPPERS = frozenset({"arguments", "parameters", "args", "kwargs", "params", "input"})


def constant_json(text: str) -> str | None:
    """Return JSON for Python's and JSON's constants, or None."""
    return _CONSTANTS.get(text)


def number_of(text: str) -> str | None:
    """Return JSON for a number that Python reads (``1_000``, ``.5``, ``0x1f``, ``+5``), or None. JSON stays unchanged."""
    if JSON_NUMBER.fullmatch(text):
        return text if JSON_INTEGER.fullmatch(text) or math.isfinite(float(text)) else None
    if _LONG_INTEGER.fullmatch(text):
        return None if "__" in text else text.lstrip("+").replace("_", "")
    if len(text) > _MAX_NUMBER or not text.isascii() or not _NUMBER_START.match(text):
        return None
    try:
        return repr(int(text, 0))
    except ValueError:
        pass
    try:
        value = float(text) if set(text) & set(".eE") else math.inf
    except ValueError:
        return None
    return repr(value) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class PythonValue:
    """A value. ``json``: its JSON, None if it is not a literal (a name, a call, words). ``text``: as it was written.

    ``nearest``: JSON that the schema may prefer to the text: a list or dict whose other parts are taken as strings.
    ``fields``: a dict's values by key.
    """

    json: str | None
    text: str = ""
    nearest: str | None = None
    fields: dict[str, PythonValue] | None = None


@dataclass(slots=True)
class PythonArguments:
    """The arguments of a call: ``positional`` in order, ``keywords`` by name (the last of equal names)."""

    positional: list[PythonValue] = field(default_factory=list)
    keywords: dict[str, PythonValue] = field(default_factory=dict)


def value_of_code(code: str, text: str) -> PythonValue:
    """Return the value of an expression on one line, whose strings are ASCII. ``text``: as it was written.

    Code that Python cannot parse is words.
    """
    plain = constant_json(code) or number_of(code)
    if plain is not None:
        return PythonValue(plain, text)
    node = _parsed(code)
    if node is None:
        return PythonValue(None, text, json_text(text))
    return replace(value_of_node(node, code.encode()), text=text)


def _parsed(code: str) -> ast.expr | None:
    if _WARNED.search(code):
        return None
    try:
        return ast.parse(code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def value_of_node(node: ast.expr, code: bytes, names: Mapping[str, PythonValue | None] | None = None) -> PythonValue:
    """Return the value of a node of ``code``. ``names``: values of variables, None for an unknown one, which raises NoMatch."""
    written = _segment(node, code)
    match node:
        case ast.Constant(value=str(text)):
            return PythonValue(json_text(text), written)
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return _array(value_of_node(item, code, names) for item in items)
        case ast.Dict(keys=keys, values=values) if None not in keys:
            named = [_key(value_of_node(key, code)) for key in keys if key is not None]
            return _object(dict(zip(named, (value_of_node(value, code, names) for value in values), strict=True)))
        case ast.Call(func=ast.Name(id=constructor), args=args, keywords=keywords) if constructor in _CONSTRUCTORS:
            return _constructed(constructor, args, keywords, code, names)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [value_of_node(each, code, names).json or "" for each in (left, right)]
            if all(part.startswith('"') for part in parts):
                return PythonValue(json_text("".join(map(json.loads, parts))), written)
        case ast.Name(id=name) if names is not None and name in names:
            found = names[name]
            if found is None:
                raise NoMatch
            return found
    if names and not names.keys().isdisjoint(each.id for each in ast.walk(node) if isinstance(each, ast.Name)):
        raise NoMatch
    return PythonValue(constant_json(written) or number_of(written), written, json_text(written))


def _segment(node: ast.expr, code: bytes) -> str:
    if node.lineno != node.end_lineno:
        return ast.unparse(node)
    line = code.split(b"\n")[node.lineno - 1] if b"\n" in code else code
    return line[node.col_offset : node.end_col_offset].decode(errors="replace")


def _constructed(
    constructor: str,
    args: list[ast.expr],
    keywords: list[ast.keyword],
    code: bytes,
    names: Mapping[str, PythonValue | None] | None,
) -> PythonValue:
    """Return the value of ``dict(a=1)``, ``list([1])``, ``set()``."""
    opener = _CONSTRUCTORS[constructor]
    if opener == "{" and not args and all(keyword.arg for keyword in keywords):
        return _object({keyword.arg or "": value_of_node(keyword.value, code, names) for keyword in keywords})
    if not args and not keywords:
        return PythonValue("[]")
    value = value_of_node(args[0], code, names) if len(args) == 1 and not keywords else PythonValue(None)
    return value if (value.json or "").startswith(opener) else PythonValue(None)


def _array(items: Iterable[PythonValue]) -> PythonValue:
    values = list(items)
    nearest = _joined([item.json or item.nearest for item in values])
    written = f"[{nearest}]" if nearest is not None else None
    return PythonValue(written if all(item.json is not None for item in values) else None, nearest=written)


def _object(fields: dict[str, PythonValue]) -> PythonValue:
    values = [value.json or value.nearest for value in fields.values()]
    nearest = _joined([value and f"{json_text(key)}: {value}" for key, value in zip(fields, values, strict=True)])
    written = f"{{{nearest}}}" if nearest is not None else None
    literal = all(value.json is not None for value in fields.values())
    return PythonValue(written if literal else None, nearest=written, fields=fields)


def _joined(parts: list[str | None]) -> str | None:
    known = [part for part in parts if part is not None]
    return ", ".join(known) if len(known) == len(parts) else None


def _key(value: PythonValue) -> str:
    """Return a value as an object's key: a string's text, a word, or the JSON of anything else."""
    written = value.json or value.nearest or ""
    return str(json.loads(written)) if written.startswith('"') else written


def unescaped(text: str) -> str:
    """Remove the backslashes that Markdown puts before underscores and asterisks, and strings before quotes."""
    return _ESCAPED.sub("", text) if "\\" in text else text


def arguments_json(arguments: PythonArguments, types: ToolTypes) -> str:
    """Return the arguments as a JSON object, by the tool's schema.

    Positional values take the schema's parameters in order. A dict as the only one, or under a name like ``params``, holds the
    arguments. None is Python's way to omit a parameter: it is left out unless the schema allows null. Raises NoMatch if
    positional values have no parameter to go to, or are the parameters' own names: a signature.
    """
    keys = types.keys
    known = frozenset(keys or ())
    positional, named = arguments.positional, arguments.keywords
    if len(positional) == 1 and (fields := _as_arguments(positional[0], types)) is not None:
        positional, named = [], fields | named
    elif len(named) == 1 and not positional:
        (name, value), *_ = named.items()
        if name in _WRAPPERS and value.fields and name not in known and known.issuperset(value.fields):
            named = value.fields
    named = {_parameter_name(name, known): value for name, value in named.items()}
    free = [key for key in keys or () if key not in named]
    positional = [value for at, value in enumerate(positional) if at < len(free) or value.json != "null"]
    literal = any(value.json is not None for value in (*positional, *named.values()))
    if len(positional) > len(free) or (not literal and any(value.text in known for value in positional)):
        raise NoMatch
    given = dict(zip(free, positional, strict=False)) | named
    if known:
        given = {key: value for key, value in given.items() if value.json != "null" or types.takes_null(key)}
    return "{" + ", ".join(f"{json_text(key)}: {_typed(key, value, types)}" for key, value in given.items()) + "}"


def _as_arguments(value: PythonValue, types: ToolTypes) -> dict[str, PythonValue] | None:
    """Return the fields of a dict that holds the arguments, None if it is itself an argument."""
    fields, keys = value.fields, types.keys
    if fields is None or not keys or not fields or not frozenset(keys).isdisjoint(fields) or value.nearest is None:
        return fields
    return None if types.json(keys[0], value.nearest).startswith("{") else fields


def _parameter_name(name: str, known: frozenset[str]) -> str:
    """Return the parameter for a name, one of which was changed because it is a Python keyword."""
    if name in known or not keyword.iskeyword(name.strip("_")):
        return name
    bare = name.strip("_")
    return next((own for own in (bare, f"_{bare}", f"{bare}_") if own in known), name)


def _typed(key: str, value: PythonValue, types: ToolTypes) -> str:
    """Return a literal as it is, unless the schema wants a number's digits as a text; anything else typed by the schema."""
    if value.json is not None:
        if value.json[:1] in _DIGITS and key in (types.keys or ()) and types.wants_text(key):
            return json_text(value.text.strip() or value.json)
        if value.json.startswith("[") and '"' in value.json and types.is_number_list(key):
            return types.json(key, value.json)
        return types.decoded(key, value.json) if value.json.startswith('"') else value.json
    if value.nearest is not None and not value.nearest.startswith('"'):
        typed = types.json(key, value.nearest)
        if not typed.startswith('"'):
            return typed
    return types.json(key, unescaped(value.text))


class PythonPart:
    """One argument, as far as it has been read: its text as written, and the same as code on one line with plain strings."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.separator = ""
        self.text: list[str] = []
        self.code: list[str] = []
        self.tail = ""
        """The end of the text."""
        self.is_blank = True
        self.closers: list[str] = []
        self.has_commas = False
        """It is words in which commas separate no arguments."""
        self.next_name = ""
        """Name of the next argument, from which no comma separates this one."""
        self.only_string: str | None = None
        """The text of the string that the part consists of so far."""

    @property
    def source_text(self) -> str:
        """The text, as the model wrote it."""
        return "".join(self.text).strip()

    @property
    def last(self) -> str:
        """The last character; "" if there is none yet."""
        return self.tail[-1:]

    def add(self, text: str, code: str | None = None) -> None:
        """Add text outside of strings."""
        if text.strip():
            self.only_string, self.is_blank = None, False
        self._add(text, text if code is None else code)

    def add_string(self, written: str, value: str) -> None:
        """Add a string, as it was written and as the text that it means."""
        self.only_string = value if self.is_blank else None
        self.is_blank = False
        self._add(written, ascii(value))

    def _add(self, text: str, code: str) -> None:
        self.text.append(text)
        self.code.append(code)
        self.tail = (self.tail + text)[-MAX_NAME:]

    def take_prefix(self) -> str:
        """Return the prefix of the string that begins here, and remove it from the code."""
        found = _PREFIXED.search(self.tail)
        if found is None:
            return ""
        self.code[-2:] = ["".join(self.code[-2:])[: -len(found[1])]]
        self.is_blank = self.is_blank or self.tail.strip() == found[1]
        return found[1]

    def begin_value(self, name: str, separator: str) -> None:
        """Begin the value: what was read so far is the argument's name."""
        self.name, self.separator, self.only_string = name, separator, None
        self.text, self.code, self.tail, self.is_blank = [], [], "", True

    def add_words(self, words: PythonPart) -> None:
        """Add words behind a comma that separates no arguments: ``city=Boston, MA``. Raises NoMatch behind a list or a dict."""
        if self.only_string is not None and "'" not in words.source_text and '"' not in words.source_text:
            self.only_string += f",{''.join(words.text)}"
        elif self.only_string is None and self.is_words:
            self.text += [",", *words.text]
            self.has_commas = True
        else:
            raise NoMatch

    @property
    def is_words(self) -> bool:
        """True if it is words without quotes."""
        code = "".join(self.code).strip()
        return self.only_string is None and not self.closers and not code.startswith(("[", "(", "{", "'", '"', "*"))

    def value(self) -> PythonValue:
        """Return the value of the complete argument."""
        if self.has_commas:
            return PythonValue(None, self.source_text, json_text(self.source_text))
        if self.only_string is not None:
            return PythonValue(json_text(self.only_string), self.source_text)
        return value_of_code("".join(self.code).strip(), self.source_text)


def string_text(body: str) -> str:
    """Return the text of a string's inside; a backslash that escapes nothing stays."""
    return _ESCAPE.sub(_unescape, body) if "\\" in body else body


def _unescape(found: re.Match[str]) -> str:
    octal, two, four, eight, newline, char = found.groups()
    if octal:
        return chr(int(octal, 8))
    if digits := two or four or eight:
        return chr(int(digits, 16))
    if newline:
        return ""
    return "\\" if char is None else _ESCAPES.get(char, char)
