"""Calls of offered tools without markers: JSON, Python, lists of quoted calls, and programs in a fence.

They are buffered: ``unmarked_blocks`` decides whether they count.

    {"name": "f", "arguments": {…}}   [{…}, {…}]       JSON
    f(a=1)   [f(a=1), g()]                             Python
    ['f(a=1)', 'g()']   ['f', {'a': 1}]                lists that models mix
    f⏎```python⏎tool_call(city="Rome")⏎```             ChatGLM 3
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Callable

from patchbay.formats.codecs.json import CallReader
from patchbay.formats.codecs.python import TOOL_NAME, PythonCalls
from patchbay.formats.context import Context, Reader
from patchbay.formats.emitter import BufferedCalls
from patchbay.formats.source import BrokenValue, MalformedCall, NoMatch, Steps, Truncated, marker_set
from patchbay.formats.values.python_reader import NAME, PythonReader
from patchbay.formats.values.python_values import PythonArguments, PythonValue, arguments_json, value_of_node

_BLANKS = " \t\r\n"
_CLOSERS = {"[": "]", "(": ")", "{": "}"}
_MAX_DEPTH = 3


class CallLists(Reader):
    """Reads lists of calls as Python or in quotes, and pairs of a name and a dict, into ``buffered``.

    ``objects`` reads a call that is a JSON object.
    """

    def __init__(self, context: Context, buffered: BufferedCalls, python: PythonCalls, objects: Callable[[], Steps[int]]) -> None:
        super().__init__(context)
        self._buffered = buffered
        self._objects = objects
        self._python = python
        self._values = PythonReader(context.source, context.emitter.note)

    def read(self) -> Steps[int]:
        """Read a list; return the number of calls in it, at least one. Raises NoMatch, Truncated."""
        return (yield from self._list(depth=0))

    def _list(self, *, depth: int) -> Steps[int]:
        source = self.source
        closer = _CLOSERS[source.buf[source.pos]]
        source.pos += 1
        emitted = 0
        while True:
            char = yield from source.space(_BLANKS)
            if not emitted and (not char or char in ")]}" or depth > _MAX_DEPTH):
                raise NoMatch if char else Truncated
            if char == closer:
                source.pos += 1
                return emitted
            if not char or (char in "`~" and (yield from self.context.json.at_fence())):
                self.note("unclosed_bracket")
                return emitted
            if emitted and char in ",;+\\":
                source.pos += 1
            elif char in ")]}":
                self.note("stray_bracket")
                source.pos += 1
            elif char in "'\"":
                emitted += yield from self._quoted(char)
            elif char == "{":
                emitted += yield from self._object_or_set(depth)
            elif char in "[(":
                emitted += yield from self._list(depth=depth + 1)
            else:
                emitted += yield from self._python.read_call()

    def _object_or_set(self, depth: int) -> Steps[int]:
        """Read a JSON call, or calls in braces: ``{'f(a=1)'}``."""
        begin, before = self.source.offset, len(self._buffered.items)
        try:
            return (yield from self._objects())
        except NoMatch:
            self._buffered.cut()
            del self._buffered.items[before:]
            self.source.rewind_to(begin)
        return (yield from self._list(depth=depth + 1))

    def _quoted(self, quote: str) -> Steps[int]:
        """Read a string that holds calls, or a tool's name and the arguments behind it; return the number of calls."""
        source, before = self.source, len(self._buffered.items)
        begin = source.offset
        source.pos += 1
        try:
            return (yield from self._calls_to(quote))
        except NoMatch:
            del self._buffered.items[before:]
            source.rewind_to(begin)
        text = json.loads((yield from self._values.value()).json or "null")
        name = self.rules.offered(text) if isinstance(text, str) else None
        char = yield from source.space(_BLANKS)
        if name is not None and char == "(":
            yield from self._python.read_arguments(name)
            return 1
        if name is None or char not in (",", ":"):
            raise NoMatch
        source.pos += 1
        if (yield from source.space(_BLANKS)) != "{":
            raise NoMatch
        self._python.name = name
        fields = (yield from self._values.value()).fields or {}
        self._buffered.start(name).append(arguments_json(PythonArguments(keywords=fields), self.rules.types(name)))
        self._buffered.end()
        return 1

    def _calls_to(self, quote: str) -> Steps[int]:
        """Read calls up to the closing quote, or up to what shows that it was left out."""
        source = self.source
        emitted = 0
        while True:
            emitted += yield from self._python.read_call()
            char = yield from source.space(_BLANKS)
            if char == quote:
                source.pos += 1
                return emitted
            if not char or char not in ",;":
                if char not in ("]", "}"):
                    raise NoMatch
                return emitted
            end = source.offset
            source.pos += 1
            if (yield from source.space(_BLANKS)) in ("'", '"', "]"):
                source.rewind_to(end)
                return emitted


_CHATGLM_FUNCTION = "tool_call"
_FENCE = marker_set(("```",))
_LABELS = frozenset({"", "py", "python"})


class ChatGlmCalls(Reader):
    """Reads ChatGLM's calls, a name with a fenced Python call of the function ``tool_call`` below it, into ``buffered``."""

    def __init__(self, context: Context, buffered: BufferedCalls, python: PythonCalls) -> None:
        super().__init__(context)
        self._buffered = buffered
        self._python = python

    def read(self) -> Steps[int]:
        """Read a call and return 1. Raises NoMatch, Truncated."""
        source = self.source
        written = yield from source.read_run(TOOL_NAME)
        name = self.rules.offered(written) if written else None
        if name is None or not (yield from self._new_line()) or not (yield from _FENCE.at(source)):
            raise NoMatch
        source.pos += len("```")
        if (yield from source.read_run(NAME)) not in _LABELS or not (yield from self._new_line()):
            raise NoMatch
        word = yield from source.read_run(NAME)
        char = yield from source.peek()
        if not char and word and _CHATGLM_FUNCTION.startswith(word):
            self._python.name = name
            raise Truncated
        if word != _CHATGLM_FUNCTION or char != "(":
            raise NoMatch
        yield from self._python.read_arguments(name)
        end = source.offset
        if (yield from source.space()) in ("", "<"):  # the end of the text or a special token replaces the closing fence
            source.rewind_to(end)
        elif (yield from _FENCE.at(source)):
            source.pos += len("```")
        else:
            raise NoMatch
        return 1

    def _new_line(self) -> Steps[bool]:
        """Read white space; return whether it has a line break."""
        begin = self.source.offset
        yield from self.source.space()
        return "\n" in self.source.since(begin)


_STATEMENT = re.compile(
    r"(?:import|from|return|await)\b(?![ \t]*\()|[)\]}\[{\"'#]|\Z"
    r"|[^\W\d][\w.]*[ \t]*(?:\(|(?:\[[^\]]{0,80}\])?[ \t]*(?::[^=]{1,60})?[-+*/|]?=)"
)
"""Beginnings of lines in a program of calls."""
_WARNED = re.compile(r"\\[^\n\\'\"abfnrtv0-7xuUN]|[0-9](?:and|else|for|if|in|is|not|or)\b")
"""What Python's parser would print a warning about."""
_MAX_PROGRAM = 4000
"""Maximum length of a program: all of it is held back."""


class ProgramCalls(Reader):
    """Reads a fence with a Python program of calls, literals and prints into ``buffered``. It is parsed, never run."""

    def __init__(self, context: Context, buffered: BufferedCalls) -> None:
        super().__init__(context)
        self._buffered = buffered
        self.variables: dict[str, PythonValue | None] = {}
        """Variables of the answer's programs; None for one whose value only running the program would give."""

    def read(self) -> Steps[None]:
        """Read up to the closing fence or the end of the text. Raises NoMatch for any other program."""
        code = textwrap.dedent((yield from self._text()))
        try:
            statements = [] if _WARNED.search(code) else ast.parse(code).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise NoMatch from None
        for statement in statements:
            self._statement(statement, code.encode())

    def _text(self) -> Steps[str]:
        """Read the fence's text. Raises NoMatch as soon as a line cannot belong to such a program."""
        source = self.source
        begin, indent = source.offset, ""
        while True:
            end = source.find("\n", source.pos)
            fence = source.find("```", source.pos)
            if fence >= 0 and (end < 0 or fence < end):
                source.pos = fence
                return source.since(begin)
            if source.offset - begin > _MAX_PROGRAM or len(source.buf) - source.pos > _MAX_PROGRAM:
                raise NoMatch
            if end < 0 and not source.ended:
                yield
                continue
            line = source.buf[source.pos : end if end >= 0 else len(source.buf)]
            source.pos += len(line) + (end >= 0)
            text = line.lstrip()
            indent = indent or line[: len(line) - len(text)]
            if line.removeprefix(indent) == text and not _STATEMENT.match(text):
                raise NoMatch
            if end < 0:
                return source.since(begin)

    def _statement(self, node: ast.stmt, code: bytes) -> None:
        target = ""
        match node:
            case ast.Import() | ast.ImportFrom():
                return
            case ast.Assign(targets=[ast.Name(id=target)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value):
                pass
            case ast.Expr(value=value) | ast.Return(value=ast.expr() as value):
                pass
            case ast.AugAssign(target=ast.Name(id=target), value=value) if not self._calls_tool(value):
                self.variables[target] = None
                return
            case _:
                raise NoMatch
        called = self._emit_calls(value, code)
        if not called and self._calls_tool(value):
            raise NoMatch  # inside of an expression: only running it would give the arguments
        if target:
            self.variables[target] = None if called else self._literal(value, code)
        elif not called and not (isinstance(value, ast.Call) and _function(value) == "print"):
            raise NoMatch

    def _emit_calls(self, value: ast.expr, code: bytes) -> bool:
        """Emit the call or list of calls that an expression consists of; return False if it is another expression."""
        items = _items_of(value)
        called = [(name, item) for item in items if isinstance(item, ast.Call) and (name := self._tool(item)) is not None]
        if not called or len(called) < len(items):
            return False
        for name, call in called:
            self._buffered.start(name).append(arguments_json(self._arguments(call, code), self.rules.types(name)))
            self._buffered.end()
        return True

    def _arguments(self, call: ast.Call, code: bytes) -> PythonArguments:
        arguments = PythonArguments([value_of_node(each, code, self.variables) for each in call.args])
        if any(isinstance(each, ast.Starred) for each in call.args):
            raise NoMatch
        for each in call.keywords:
            value = value_of_node(each.value, code, self.variables)
            if each.arg is None and value.fields is None:
                raise NoMatch
            arguments.keywords |= {each.arg: value} if each.arg is not None else value.fields or {}
        return arguments

    def _literal(self, value: ast.expr, code: bytes) -> PythonValue | None:
        try:
            found = value_of_node(value, code, self.variables)
        except NoMatch:
            return None
        return found if found.json is not None or found.fields is not None else None

    def _tool(self, call: ast.Call) -> str | None:
        name = _function(call)
        return self.rules.offered(name) if name else None

    def _calls_tool(self, value: ast.expr) -> bool:
        return any(isinstance(each, ast.Call) and self._tool(each) is not None for each in ast.walk(value))


def _items_of(value: ast.expr) -> list[ast.expr]:
    """Return the items of a list, or the expression, without ``await`` and ``print``."""
    if isinstance(value, ast.Await):
        return _items_of(value.value)
    if isinstance(value, ast.Call) and _function(value) == "print" and len(value.args) == 1:
        return _items_of(value.args[0])
    return value.elts if isinstance(value, ast.List | ast.Tuple) else [value]


def _function(call: ast.Call) -> str:
    """Return the dotted name of the function that is called, "" if it is another expression."""
    parts: list[str] = []
    node = call.func
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


_PRINT = "print("
_STATEMENT_ENDS = frozenset("\r\n;,#`)+")


class ImplicitCalls:
    """Reads one unmarked call, or one list of calls, in any notation, into ``buffered``."""

    def __init__(self, context: Context, buffered: BufferedCalls) -> None:
        self.source = context.source
        self.buffered = buffered
        self._json = context.json
        resolve = context.rules.resolve if context.rules.any_name else context.rules.offered
        self._objects = CallReader(context.source, context.json, buffered, context.rules, note=context.emitter.note)
        self._objects.resolve = resolve
        self._python = PythonCalls(context, context.source, buffered, context.rules.offered)
        self._lists = CallLists(context, buffered, self._python, self._object)
        self._chatglm = ChatGlmCalls(context, buffered, self._python)
        buffered.ended = self._forget_name
        self.item_start = self.items_before = 0
        """Offset of the last item, and the number of buffered items before it."""

    def reset(self) -> None:
        """Discard the buffered calls."""
        self.buffered.clear()
        self.items_before = 0
        self._forget_name()

    def _forget_name(self) -> None:
        self._objects.name = self._python.name = ""

    def cut(self) -> str:
        """Remove a call that the end of the text cut off; return its name, "" if it is not known."""
        return self.buffered.cut() or self._objects.name or self._python.name

    def item(self) -> Steps[bool]:
        """Read one call or list of calls with the first codec that fits; return False, with nothing read, if none does.

        Raises MalformedCall, behind the value, if it is JSON that can only be repaired by inventing something.
        """
        source, buffered = self.source, self.buffered
        begin, before = source.offset, len(buffered.items)
        self.item_start, self.items_before = begin, before
        char = yield from source.peek()
        escaped = char == "\\"  # Markdown's, before a bracket
        if escaped:
            source.pos += 1
            char = yield from source.peek()
            if char != "[":
                source.rewind_to(begin)
                return False
        codecs: tuple[Callable[[], Steps[int]], ...] = (self._statement, self._chatglm.read)
        if char in _CLOSERS:
            codecs = {"{": (self._object,), "[": (self._object, self._lists.read)}.get(char, (self._lists.read,))
        broken = ""
        for codec in codecs:
            try:
                if (yield from codec()):
                    return True
            except NoMatch as error:
                broken = broken or (self._objects.name if isinstance(error, BrokenValue) else "")
                buffered.cut()
                self._forget_name()
            del buffered.items[before:]
            source.rewind_to(begin + escaped)
        if broken:
            try:
                yield from self._json.value([])
            except MalformedCall:
                self._objects.name = broken
                raise
        source.rewind_to(begin)
        return False

    def _object(self) -> Steps[int]:
        self._objects.strict = True
        self._json.guarded = True
        try:
            return (yield from self._objects.read())
        finally:
            self._json.guarded = False

    def _statement(self) -> Steps[int]:
        """Read ``f(...)`` or ``print(f(...))`` that fills its statement."""
        source = self.source
        printed = (yield from source.ahead(len(_PRINT))) == _PRINT
        source.pos += len(_PRINT) if printed else 0
        emitted = yield from self._python.read_call()
        char = yield from source.space(" \t")
        if printed and char == ")":
            source.pos += 1
            char = yield from source.space(" \t")
        if char and char not in _STATEMENT_ENDS:
            raise NoMatch
        return emitted
