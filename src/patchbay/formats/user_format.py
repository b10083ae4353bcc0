"""A user's own format, read from a TOML file: the markers around calls, and the notation of a call between them.

The file is documented in ``docs/reference/formats.md``. It becomes a row like those of the catalog; JSON with keys of its own,
and calls as tags, have a reader here. Such calls are emitted when they are complete.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import FORMATS
from patchbay.formats.codecs.json import emit_call_text
from patchbay.formats.context import Context, Reader
from patchbay.formats.scanner import RegionReader
from patchbay.formats.source import BrokenValue, MalformedCall, NoMatch, Steps, Truncated, discard, marker_set
from patchbay.formats.spec import Format, ReasoningMarkers, Wrapper, first_part, last_part
from patchbay.formats.values.json_strict import json_text

Mark = Annotated[str, Field(pattern=r"\S")]
Marks = Mark | Annotated[list[Mark], Field(min_length=1)]
_T = TypeVar("_T", bound=BaseModel)


class _Calls(BaseModel):
    """What a table of calls may say; each notation has a table of its own."""

    model_config = ConfigDict(extra="forbid")

    body: str = "json"
    close: Marks | None = None


class _Markers(_Calls):
    open: Marks
    leads: Marks | None = None


class _JsonCalls(_Markers):
    name_key: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")] = ""
    arguments_key: Annotated[str, Field(pattern=r"^\w+(\.\w+)*$")] = ""


class _NamedCalls(_Markers):
    separators: Marks
    name_is: Literal["first", "last"] = "last"


class _TagCalls(_Calls):
    open: Marks | None = None
    call: Annotated[str, Field(pattern=r"^[^{]*\S[^{]*\{name\}[^{]+$")]
    call_end: Marks
    parameter: Annotated[str, Field(pattern=r"^[^{]*\S[^{]*\{key\}[^{]+$")]
    parameter_end: Mark
    trim: Literal["none", "line", "space"] = "none"


class ReasoningTable(BaseModel):
    """Markers around reasoning."""

    model_config = ConfigDict(extra="forbid")

    open: Marks
    close: Marks
    anywhere: bool = False


class FormatFile(BaseModel):
    """A whole file."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
    calls: Any
    families: Marks | None = None
    drop: Marks | None = None
    reasoning: Any = ()


CALLS: Mapping[str, type[_Calls]] = {"json": _JsonCalls, "named": _NamedCalls, "python": _Markers, "tags": _TagCalls}
"""Tables of calls, by the calls' notation."""


@dataclass(frozen=True)
class KeyedCalls:
    """JSON, one call or a list of them, with keys of its own; nested ones as a path."""

    name: tuple[str, ...]
    arguments: tuple[str, ...]
    closers: tuple[str, ...]


@dataclass(frozen=True)
class TaggedCalls:
    """One call as tags.

    ``name_end``: what ends the call's name. ``opener``, ``key_end``: stand around an argument's key. ``trim``: see the file.
    """

    name_end: str
    closers: tuple[str, ...]
    opener: str
    key_end: str
    closer: str
    trim: str


def user_format(text: str) -> Format:
    """Parse the text of a format file. Raises ConfigurationError that names the wrong field by its path."""
    try:
        file = _table(tomllib.loads(text), FormatFile, "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"The format file is not TOML: {error}.") from None
    if file.name in FORMATS or file.name == "auto":
        _refuse("name", f"{file.name!r} is a format that is there already")
    wrappers: list[Wrapper] = []
    notations: dict[str, KeyedCalls | TaggedCalls] = {}
    control_tokens = list(_marks(file.drop))
    for path, table in _tables(file.calls, "calls"):
        body = table.get("body", "json")
        if body not in CALLS:
            _refuse(f"{path}.body", f"{body!r} is not one of {', '.join(CALLS)}")
        calls = _table(table, CALLS[body], path)
        if isinstance(calls, _TagCalls):
            control_tokens += [*_marks(calls.open), *_marks(calls.close)]
            opener, name_end = calls.call.split("{name}")
            head, key_end = calls.parameter.split("{key}")
            notations[opener] = TaggedCalls(name_end, _marks(calls.call_end), head, key_end, calls.parameter_end, calls.trim)
        elif isinstance(calls, _JsonCalls) and (calls.name_key or calls.arguments_key):
            name, arguments = calls.name_key or "name", calls.arguments_key or "arguments"
            keyed = KeyedCalls(tuple(name.split(".")), tuple(arguments.split(".")), _marks(calls.close))
            if not keyed.closers:
                _refuse(f"{path}.close", "nothing else says where a call with keys of its own ends")
            notations |= dict.fromkeys(_marks(calls.open), keyed)
        elif isinstance(calls, _Markers):
            wrappers.append(_wrapper(calls))
    if not wrappers and not notations:
        _refuse("calls", "is empty: at least one table says how calls are marked")
    reasoning = [_table(table, ReasoningTable, path) for path, table in _tables(file.reasoning, "reasoning")]
    return Format(
        file.name,
        _marks(file.families),
        auto=False,
        wrappers=tuple(wrappers),
        reasoning_markers=tuple(ReasoningMarkers(_marks(each.open), _marks(each.close), each.anywhere) for each in reasoning),
        control_tokens=tuple(control_tokens),
        regions=CustomRegions(tuple(notations.items())) if notations else None,
        implicit=False,
    )


def _wrapper(calls: _Markers) -> Wrapper:
    name = first_part if isinstance(calls, _NamedCalls) and calls.name_is == "first" else last_part
    separators = _marks(calls.separators) if isinstance(calls, _NamedCalls) else ()
    return Wrapper(_marks(calls.open), _marks(calls.close), noise_markers=_marks(calls.leads), separators=separators, name=name)


def _tables(value: object, path: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tables of a list, or a single table in place of a list, each with its path."""
    found = [value] if isinstance(value, Mapping) else value
    if not isinstance(found, Sequence) or not all(isinstance(each, Mapping) for each in found):
        _refuse(path, "must be a table or a list of tables")
    return [(f"{path}[{index}]", each) for index, each in enumerate(found)]


def _table(value: Mapping[str, Any], kind: type[_T], path: str) -> _T:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        # A misspelt field first: the one that it stands for is missing.
        first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
        place = str(first["loc"][0])
        _refuse(f"{path}.{place}".strip("."), first["msg"][:1].lower() + first["msg"][1:])


def _refuse(path: str, problem: str) -> NoReturn:
    raise ConfigurationError(f"{path}: {problem}.")


def _marks(value: str | Sequence[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(dict.fromkeys(value or ()))


@dataclass(frozen=True)
class CustomRegions:
    """The regions of calls that no row of the catalog describes, as a ``RegionFactory``. ``notations``: each with its opener."""

    notations: tuple[tuple[str, KeyedCalls | TaggedCalls], ...]

    @property
    def markers(self) -> tuple[str, ...]:
        """The openers."""
        return tuple(opener for opener, _ in self.notations)

    def __call__(self, context: Context) -> RegionReader:
        """Return the reader of these regions."""
        return CustomCalls(context, dict(self.notations)).open


class CustomCalls(Reader):
    """Reads calls in a user's own notations, each behind its opener."""

    def __init__(self, context: Context, notations: Mapping[str, KeyedCalls | TaggedCalls]) -> None:
        super().__init__(context)
        self.json = context.json
        self._notations = notations

    def open(self, marker: str) -> Steps[bool]:
        """Read a region; return False if it is prose."""
        if self.emitter.next_is_mention:
            return False
        source, notation = self.source, self._notations[marker]
        begin = source.offset
        source.pos += len(marker)
        try:
            if isinstance(notation, KeyedCalls):
                yield from self._keyed_calls(notation)
            else:
                yield from self._tagged_call(notation)
        except NoMatch:
            return False
        except (MalformedCall, Truncated):
            self.calls.cut(source.since(begin))
        return True

    def _keyed_calls(self, notation: KeyedCalls) -> Steps[None]:
        sink: list[str] = []
        closers = marker_set(notation.closers)
        self.json.stops = closers
        try:
            yield from self.json.value(sink)
        except BrokenValue:
            raise MalformedCall from None
        finally:
            self.json.stops = None
        value = json.loads("".join(sink))
        items = value if isinstance(value, list) else [value]
        calls = [(_at(each, notation.name), _at(each, notation.arguments)) for each in items]
        names = [self.rules.resolve(name) if isinstance(name, str) else None for name, _ in calls]
        if not calls or None in names:
            raise NoMatch
        behind = self.source.offset
        yield from self.json.space()
        if closer := (yield from closers.at(self.source)):
            self.source.pos += len(closer)
        else:
            self.source.rewind_to(behind)  # the closer was left out
        for name, (_, arguments) in zip(names, calls, strict=True):
            assert name is not None
            text = arguments if isinstance(arguments, str) else json_text({} if arguments is None else arguments)
            emit_call_text(self.calls, self.rules, name, text, self.note)

    def _tagged_call(self, notation: TaggedCalls) -> Steps[None]:
        source = self.source
        name = self.rules.resolve((yield from self._word(notation.name_end)))
        if name is None:
            raise NoMatch
        self.calls.name = name
        types = self.rules.types(name)
        arguments: dict[str, str] = {}
        either = marker_set((notation.opener, *notation.closers))
        while (mark := (yield from source.read_to(either, discard))) == notation.opener:
            source.pos += len(mark)
            key = yield from self._word(notation.key_end)
            text = _trimmed((yield from self._text(notation.closer)), notation.trim)
            arguments[key] = json_text(text) if types.keys is None else types.json(key, text)
        if not mark:
            raise Truncated
        source.pos += len(mark)
        members = ", ".join(f"{json_text(key)}: {value}" for key, value in arguments.items())
        emit_call_text(self.calls, self.rules, name, f"{{{members}}}", self.note)

    def _word(self, end: str) -> Steps[str]:
        """Read a name up to ``end``, and that. Raises NoMatch if it is not on this line."""
        pieces: list[str] = []
        if (yield from self.source.read_to(marker_set((end, "\n")), pieces.append)) != end:
            raise NoMatch
        self.source.pos += len(end)
        return "".join(pieces).strip()

    def _text(self, end: str) -> Steps[str]:
        """Read the text up to ``end``, and that. Raises Truncated."""
        pieces: list[str] = []
        if not (yield from self.source.read_to(marker_set((end,)), pieces.append)):
            raise Truncated
        self.source.pos += len(end)
        return "".join(pieces)


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _trimmed(text: str, trim: str) -> str:
    return text.strip() if trim == "space" else text.removeprefix("\n").removesuffix("\n") if trim == "line" else text
