"""Calls and arguments as JSON: which objects are calls, under which of the many keys that models use.

A call is committed (its start is emitted, its arguments flow) when its name is known to be a tool's and its arguments begin; from
then on it cannot be retracted. Until then nothing is emitted, and ``NoMatch`` returns the text to be prose. The shapes read:

    {"name": "f", "arguments": {...}}            also tool, tool_name, function, function_name; parameters, args, input, params
    {"arguments": {...}, "name": "f"}            in any order
    {"type": "function", "function": {...}}      OpenAI's envelope, {"tool_calls": [...]}, and {"tool_call": {...}}
    {"name": "f", "city": "Rome"}                flat, in a block that is tagged as a call only
    {"f": {"city": "Rome"}}                      the name as the key
    [{...}, {...}]                               several
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from patchbay.formats.context import Context, Reader
from patchbay.formats.emitter import CallSink
from patchbay.formats.source import MalformedCall, NoMatch, Source, Steps, Truncated, UnknownTool, discard, whole_text
from patchbay.formats.values.json_stream import QUOTES, JsonReader
from patchbay.formats.values.json_strict import json_string, no_constant, strict_json
from patchbay.formats.values.tool_names import ToolRules, ToolTypes


def emit_call(reader: JsonReader, calls: CallSink, rules: ToolRules, name: str) -> Steps[None]:
    """Emit a call of the tool ``name`` whose arguments begin at the reader's position. Raises Truncated, with the call begun."""
    types = rules.types(name)
    yield from reader.value(calls.start(name), types if types.unquoted else None)
    calls.end()


def emit_call_text(calls: CallSink, rules: ToolRules, name: str, arguments: str, note: Callable[[str], None] = discard) -> None:
    """Emit a call whose arguments (JSON or text) were read before its name, or from a string."""
    types = rules.types(name)
    pieces = calls.start(name)
    if not is_object(arguments):
        note("arguments_not_object")
        arguments = _non_object_json(arguments, types)
    elif types.unquoted:
        arguments = _repaired_json(arguments, discard, types) or arguments
    pieces.append(arguments)
    calls.end()


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    try:
        return isinstance(strict_json(text), dict)
    except ValueError:
        return False
    except RecursionError:
        return text.lstrip().startswith("{")


def _non_object_json(text: str, types: ToolTypes) -> str:
    """Return JSON for arguments that are not an object.

    Words are the value of the tool's only parameter, if it takes any text.
    """
    try:
        strict_json(text)
    except ValueError:
        keys = types.keys or ()
        words = not text.lstrip().startswith(("{", "["))  # otherwise broken JSON
        quoted = json_string(text)
        return f"{{{json_string(keys[0])}: {quoted}}}" if words and len(keys) == 1 and types.is_text(keys[0]) else quoted
    except RecursionError:
        pass
    return text


def object_text(text: str, note: Callable[[str], None]) -> str:
    """Return the arguments in a string: an object, repaired to valid JSON if possible, else the text unchanged."""
    text = text.strip()
    return (_repaired_json(text, note) if text.startswith("{") else None) or text


def _repaired_json(text: str, note: Callable[[str], None], types: ToolTypes | None = None) -> str | None:
    """Return the JSON of a text that is exactly one value, None otherwise."""
    source = whole_text(text)
    sink: list[str] = []
    try:
        for _ in JsonReader(source, note).value(sink, types):
            pass
    except (MalformedCall, Truncated):
        return None
    return None if source.buf[source.pos :].strip() else "".join(sink)


_LABEL = re.compile(r"[ \t]*[\w+.-]*")
_MAX_LABEL = 32
_STRING = re.compile(r'"\s{0,32}([{"])?')
_STRING_LOOKAHEAD = 34


class JsonArguments(Reader):
    """Reads arguments as one JSON object: fenced, in a string, or bare."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.json = context.json

    def fits(self) -> Steps[bool]:
        """True if an object, a fence or a string that begins with an object stands at ``pos``."""
        char = yield from self.source.peek()
        if char == '"':
            return (yield from self._holds_object())
        return char == "{" or (char == "`" and (yield from self.json.at_fence()))

    def read(self, name: str) -> Steps[None]:
        """Read the arguments and emit the call. Raises NoMatch while it was not emitted, Truncated."""
        if self.source.buf[self.source.pos] == '"':
            arguments = object_text((yield from self.json.text()), self.note) or "{}"
            if arguments[0] != "{":
                raise NoMatch
            emit_call_text(self.calls, self.rules, name, arguments, self.note)
            return
        fenced = yield from self._fence_opener()
        self.json.guarded = False
        yield from emit_call(self.json, self.calls, self.rules, name)
        if fenced:
            yield from self._fence_closer()

    def skip(self) -> Steps[None]:
        """Read the arguments and emit nothing. Raises NoMatch if there are none."""
        if not (yield from self.fits()):
            raise NoMatch
        try:
            fenced = self.source.buf[self.source.pos] != '"' and (yield from self._fence_opener())
            yield from self.json.value([])
            if fenced:
                yield from self._fence_closer()
        except (MalformedCall, Truncated):
            pass

    def _fence_opener(self) -> Steps[bool]:
        """Read a fence up to the object in it; return whether there is one."""
        fenced = self.source.buf[self.source.pos] == "`"
        if fenced:
            yield from fence_line(self.source)
            if (yield from self.json.space()) != "{":
                raise NoMatch
        return fenced

    def _fence_closer(self) -> Steps[None]:
        if (yield from self.json.space()) == "`" and (yield from self.json.at_fence()):
            self.source.pos += 3

    def _holds_object(self) -> Steps[bool]:
        """True if the string at ``pos`` begins with an object, or is empty."""
        source = self.source
        while True:
            found = _STRING.match(source.buf, source.pos)
            assert found is not None
            if found.end() < len(source.buf) or found[1] or source.ended or found.end() - source.pos >= _STRING_LOOKAHEAD:
                return found[1] is not None
            yield


def fence_line(source: Source) -> Steps[None]:
    """Read a fence of three and its label; raises NoMatch if the label is too long."""
    source.pos += 3
    size = yield from source.run(0, _LABEL, _MAX_LABEL + 1)
    if size > _MAX_LABEL:
        raise NoMatch
    source.pos += size


_NAME_KEYS = frozenset({"name", "tool", "tool_name", "function_name", "action"})
_ARGUMENT_KEYS = frozenset({"arguments", "parameters", "args", "input", "params", "tool_input", "action_input"})
_ENVELOPE_KEYS = frozenset({"type", "id", "index", "call_id", "tool_call_id"})
_CALL_KEYS = frozenset({"function", "function_call", "tool_call"})
_MESSAGE_KEYS = frozenset({"role", "content", "refusal"})
_MAX_NAME = 256
_STANDARD_CALL = re.compile(r'\{\s*"name"\s*:\s*"([^"\\\x00-\x1f]{1,256})"\s*,\s*"arguments"\s*:\s*(?=\{)')
_CLOSING = re.compile(r"[ \t\r\n]*\}")
_MAX_DEPTH = 3  # tool_calls -> item -> function


_members_at = json.JSONDecoder(parse_constant=no_constant, parse_int=float, object_pairs_hook=tuple).raw_decode
"""Return the members of the object at a position, and its end; raises ValueError, RecursionError if it is not valid JSON."""


@dataclass
class _Draft:
    """The parts of an object that were read before its call is committed."""

    name: str | None = None
    arguments: str | None = None
    others: dict[str, str] = field(default_factory=dict)
    emitted: bool = False
    keyed: int = 0


class CallReader:
    """Reads calls from JSON values.

    ``resolve``: returns the tool that a name means, None if the object is not a call. ``strict``: the text is not marked as a
    call, so every object must be a call with an arguments key, if the tool takes any, and nothing else. ``name_is_key``: an
    object's only key may be the name.
    """

    def __init__(
        self, source: Source, json_reader: JsonReader, calls: CallSink, rules: ToolRules, *, note: Callable[[str], None]
    ) -> None:
        self.source = source
        self.json = json_reader
        self.calls = calls
        self.rules = rules
        self.resolve = rules.resolve
        self.note = note
        self.strict = False
        self.name_is_key = False
        self.name = ""
        """Name of the call being read, as far as known: for a call that is cut off."""
        self._depth = 0

    def read(self) -> Steps[int]:
        """Read the object or array at ``pos``; return the number of calls in it. Raises NoMatch, Truncated."""
        if not self.strict and self._standard_call():
            return 1
        char = yield from self.source.peek()
        self._depth = 0
        self.name = ""
        if char == "{":
            return (yield from self._object())
        if char == "[":
            return (yield from self._array())
        raise NoMatch

    def _standard_call(self) -> bool:
        """Fast path: read a call that is valid JSON, has arrived completely and has its name first; otherwise read nothing."""
        source = self.source
        found = _STANDARD_CALL.match(source.buf, source.pos)
        name = self.resolve(found.group(1)) if found else None
        if found is None or name is None:
            return False
        begin = found.end()
        try:
            members, end = _members_at(source.buf, begin)
        except (ValueError, RecursionError):
            return False
        closing = _CLOSING.match(source.buf, end)
        unquoted = self.rules.types(name).unquoted
        if closing is None or (unquoted and any(key in unquoted and isinstance(value, str) for key, value in members)):
            return False
        source.pos = begin  # where reading character by character would emit the call
        self._commit()
        self.calls.start(name).append(source.buf[begin:end])
        source.pos = end
        self.calls.end()
        source.pos = closing.end()
        return True

    def _array(self) -> Steps[int]:
        source = self.source
        source.pos += 1
        count = 0
        skipped: list[str] = []
        while True:
            if count:
                for text in skipped:
                    self.calls.skip_text(text)
                skipped.clear()
            char = yield from self.json.space()
            if char == "{":
                count += yield from self._item(skipped)
            elif char == ",":
                source.pos += 1
            elif char == "]":
                if not count:
                    raise NoMatch
                source.pos += 1
                return count
            elif not char:
                if count:
                    self.note("unclosed_bracket")
                    return count
                raise Truncated
            elif char in "`~<[" and count and (yield from self.json.at_end()):
                self.note("unclosed_bracket")
                return count
            elif char == "}" and count:
                source.pos += 1
                self.note("stray_bracket")
            elif not count or self.strict:
                raise NoMatch
            elif char.isalpha():
                self.note("unclosed_bracket")  # words: the list was never closed
                return count
            else:
                skipped.append((yield from self.skip_value()))

    def _item(self, skipped: list[str]) -> Steps[int]:
        """Read an object in an array; append its text to ``skipped`` if it is not a call."""
        start = self.source.offset
        depth = self._depth
        try:
            return (yield from self._object())
        except NoMatch:
            if self.strict:
                raise
            self._depth = depth
            self.source.rewind_to(start)
            skipped.append((yield from self.skip_value()))
            return 0

    def skip_value(self) -> Steps[str]:
        """Read a value that is not a call; return its text unchanged."""
        source = self.source
        start = source.offset
        try:
            yield from self.json.value([])
        except (NoMatch, MalformedCall, Truncated):
            pass
        if source.offset == start:
            source.pos += 1  # a marker, which no value begins with
        self.note("no_call")
        return source.since(start)

    def _object(self) -> Steps[int]:
        draft = _Draft()
        self.name = ""
        depth = self._depth
        count = yield from self._members(draft)
        self._depth = depth
        return count or self._flat_or_empty_call(draft)

    def _flat_or_empty_call(self, draft: _Draft) -> int:
        """Decide whether an object without an emitted call is a call after all."""
        if draft.name is None:
            raise NoMatch
        if draft.arguments is None:
            types = self.rules.types(draft.name)
            keys = types.keys
            flat = {key: raw for key, raw in draft.others.items() if key not in _ENVELOPE_KEYS or (keys and key in keys)}
            message = self.strict and not (draft.others.keys() & _MESSAGE_KEYS).issubset(keys or ())
            if message or (keys is None if flat else self.strict and not self._may_lack_arguments(draft.name, types)):
                raise NoMatch
            if flat:
                self.note("flat_arguments")
            draft.arguments = "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {raw}" for key, raw in flat.items()) + "}"
        self._emit(draft.name, draft.arguments)
        return 1

    def _may_lack_arguments(self, name: str, types: ToolTypes) -> bool:
        """True if an unmarked object without arguments is a call: of an offered tool that takes none."""
        return self.rules.offered(name) is not None and not (types.keys or types.required)

    def _emit(self, name: str, arguments: str) -> None:
        self._commit()
        emit_call_text(self.calls, self.rules, name, arguments, self.note)

    def _members(self, draft: _Draft) -> Steps[int]:
        """Read an object's members into ``draft``; return the number of calls emitted meanwhile (their objects are complete)."""
        source = self.source
        source.pos += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise NoMatch
        while True:
            if draft.emitted and not self.strict:
                yield from self._rest()
                self._depth -= 1
                return 1
            char = yield from self.json.space()
            if char == "}":
                source.pos += 1
                self._depth -= 1
                return draft.keyed or int(draft.emitted)
            if char == ",":
                source.pos += 1
                continue
            if not char or (char in "`~<[" and (yield from self.json.at_end())):
                # The call is complete: only closing brackets are missing.
                if draft.keyed or (char and (draft.emitted or draft.name is not None)):
                    self.note("unclosed_bracket")
                    return draft.keyed or int(draft.emitted)
                raise NoMatch if char else Truncated
            if char == "{" and not self.strict and not (draft.name or draft.arguments or draft.others or draft.keyed):
                source.pos += 1  # doubled, as in a template
                self.note("stray_bracket")
                continue
            if not (char.isalpha() or char == "_" or (yield from self.json.at_quote())):
                raise NoMatch
            count = yield from self._member(draft)
            if count:
                return count

    def _rest(self) -> Steps[None]:
        """Read the rest of an emitted call's object, up to its closing bracket; anything else is left as prose."""
        source = self.source
        while True:
            char = yield from self.json.space()
            if char == "}":
                source.pos += 1
                return
            if char != ",":
                self.note("unclosed_bracket")
                return
            start = source.offset
            source.pos += 1
            try:
                if (yield from self.json.space()) in QUOTES:
                    yield from self._member(_Draft(emitted=True))
                    continue
            except NoMatch:
                pass
            except (MalformedCall, Truncated):
                return
            source.rewind_to(start)
            self.note("unclosed_bracket")
            return

    def _member(self, draft: _Draft) -> Steps[int]:
        """Read one member; return the number of calls that it emitted by itself (``tool_calls``)."""
        sink: list[str] = []
        yield from self.json.key(sink, streamed=False)
        key = str(json.loads("".join(sink))).replace("\\", "")
        if (yield from self.json.space()) != ":":
            raise NoMatch
        self.source.pos += 1
        char = yield from self.json.space()
        if draft.emitted:
            yield from self.json.value([])
        elif draft.name is None and (key in _NAME_KEYS or (key == "function" and char in QUOTES)):
            if not (yield from self.json.at_quote()):
                if char:
                    raise NoMatch
                raise Truncated
            yield from self._name(draft)
        elif draft.name is None and key in _CALL_KEYS and char == "{":
            yield from self._function(draft)
        elif draft.arguments is None and key in _ARGUMENT_KEYS:
            yield from self._arguments(draft, char)
        elif draft.name is None and key == "tool_calls" and char == "[":
            count = yield from self._array()
            if not self.strict:
                yield from self._rest()
                return count
            draft.emitted = count > 0
        elif char == "{" and self._named_by_key(draft, key):
            yield from self._call_by_key(draft, key)
        elif draft.keyed or (self.strict and not self._may_be_member(draft, key)):
            raise NoMatch
        else:
            other: list[str] = []
            yield from self.json.value(other)
            draft.others[key] = "".join(other)
        return 0

    def _may_be_member(self, draft: _Draft, key: str) -> bool:
        """True if an unmarked call may have this member beside name and arguments."""
        if key in _ENVELOPE_KEYS or key in _MESSAGE_KEYS:
            return True
        return draft.name is not None and draft.arguments is None and key in (self.rules.types(draft.name).keys or ())

    def _named_by_key(self, draft: _Draft, key: str) -> bool:
        """True if an object under ``key`` is the arguments of the tool that the key names."""
        if draft.name is not None or draft.arguments is not None or draft.others:
            return False
        return (self.resolve(key) if self.name_is_key else self.rules.offered(key)) is not None

    def _call_by_key(self, draft: _Draft, key: str) -> Steps[None]:
        name = self.resolve(key) or key
        self.name = name
        self._commit()
        yield from emit_call(self.json, self.calls, self.rules, name)
        draft.keyed += 1

    def _commit(self) -> None:
        if not self.strict:
            self.json.guarded = False

    def _name(self, draft: _Draft) -> Steps[None]:
        name = yield from self.json.text()
        known = self.resolve(name) if name and len(name) <= _MAX_NAME else None
        if known is None:
            raise UnknownTool if name else NoMatch
        draft.name = self.name = name = known
        if draft.arguments is not None:
            self._emit(name, draft.arguments)
            draft.emitted = True

    def _function(self, draft: _Draft) -> Steps[None]:
        inner = _Draft(arguments=draft.arguments)
        yield from self._members(inner)
        if inner.name is None:
            raise NoMatch
        if not inner.emitted:
            draft.others.update(inner.others)
        draft.name, draft.emitted = inner.name, inner.emitted

    def _arguments(self, draft: _Draft, char: str) -> Steps[None]:
        if char == "{" and draft.name is not None:
            self._commit()
            yield from emit_call(self.json, self.calls, self.rules, draft.name)
            draft.emitted = True
            return
        if char and char in "\"'" and (yield from self._holds_bare_object(char)):
            self.note("unescaped_quotes")
            self.source.pos += 1
            yield from self._arguments(draft, (yield from self.json.space()))
            if (yield from self.json.space()) == char:
                self.source.pos += 1
            return
        if char in QUOTES:
            arguments = object_text((yield from self.json.text()), self.note)
        else:
            sink: list[str] = []
            yield from self.json.value(sink)
            arguments = "".join(sink)
        if arguments in ("null", ""):
            arguments = "{}"
        if draft.name is None:
            draft.arguments = arguments
        else:
            self._emit(draft.name, arguments)
            draft.emitted = True

    def _holds_bare_object(self, quote: str) -> Steps[bool]:
        """True if the quotes at ``pos`` hold an object whose own quotes are not escaped: ``"{"city": "Rome"}"``."""
        source = self.source
        while True:
            ahead = source.buf[source.pos + 1 : source.pos + 33].lstrip()
            inner = ahead[1:].lstrip()
            if inner or source.ended or (ahead and ahead[0] != "{") or len(source.buf) - source.pos >= 33:
                return ahead.startswith("{") and inner.startswith(quote)
            yield
