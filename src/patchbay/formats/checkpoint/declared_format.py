"""Declared formats: markers where the parser has rows for them, custom regions for the rest.

A template's reasoning becomes reasoning markers, its calls as plain JSON become a wrapper, so that damaged ones are read too.
Arguments in plain JSON are emitted as they arrive, every other call when its region is complete. A region without a tool's call
is prose, and so is one that cannot be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from patchbay.formats.checkpoint.declarations import Match, Pattern, Verdict
from patchbay.formats.checkpoint.response_template import Content, Field, Json, ReadCall, ResponseTemplate, Tags
from patchbay.formats.codecs.json import JsonArguments, emit_call_text
from patchbay.formats.context import Context, Reader
from patchbay.formats.scanner import Region
from patchbay.formats.source import NoMatch, Steps, Truncated, marker_set
from patchbay.formats.spec import AnswerMarkers, Format, ReasoningMarkers, Wrapper
from patchbay.formats.values.json_strict import json_text

_RESCANNED = 256
"""A failed opening longer than this hides other openings inside it."""


class FieldReader(Reader):
    """Reads the regions of ``fields``."""

    def __init__(self, context: Context, fields: Sequence[Field]) -> None:
        super().__init__(context)
        self.json = context.json
        self._arguments = JsonArguments(context)
        self._fields: dict[str, list[tuple[Pattern, Field]]] = {}
        for field in fields:
            if field.open is not None:
                for start in field.open.starts:
                    self._fields.setdefault(start, []).append((field.open, field))

    def open(self, marker: str) -> Steps[bool]:
        """Read a region; of several fields that may begin here, the one with the longest opening."""
        source = self.source
        if self.emitter.next_is_mention:
            return False  # the marker is only mentioned
        begin, found = source.offset, None
        for pattern, field in self._fields[marker]:
            match = yield from self._match(pattern)
            if match is not None and (found is None or match.end > found[0].end):
                found = match, field
        if found is None:
            # A failed opening is not read again from each opening inside it: that would take too long.
            seen = max(pattern.partial_length(source.buf, source.pos) for pattern, _ in self._fields[marker])
            source.pos += max(0, seen - _RESCANNED)
            return False
        match, field = found
        source.pos = match.end
        if field.role != "calls":
            yield from self._text(field)
            return True
        try:
            if field.streams:
                yield from self._named_call(field, match.groups)
            else:
                yield from self._calls(field, match.groups)
        except NoMatch:
            return False
        except Truncated:
            self.calls.cut(source.since(begin))
        return True

    def _match(self, pattern: Pattern) -> Steps[Match | None]:
        """Return the match at ``pos``, without reading it."""
        source = self.source
        while True:
            found = pattern.match(source.buf, source.pos, ended=source.ended)
            if found is not Verdict.MORE:
                return found if isinstance(found, Match) else None
            yield

    def _text(self, field: Field) -> Steps[None]:
        """Read reasoning or prose up to its end, and emit it as it arrives."""
        emitter = self.emitter
        is_reasoning = field.role == "reasoning"
        emitter.markup()
        self.source.release()
        yield from self._body(field, emitter.reasoning if is_reasoning else emitter.text)
        (emitter.end_reasoning if is_reasoning else emitter.markup)()

    def _named_call(self, field: Field, groups: Mapping[str, str]) -> Steps[None]:
        name = self.rules.resolve(field.call_name(groups))
        if name is None:
            raise NoMatch
        self.calls.name = name
        if (yield from self.json.space()) == "{":
            yield from self._arguments.read(name)
        elif field.close is None or (yield from self._match(field.close)) is None:
            raise NoMatch
        else:
            emit_call_text(self.calls, self.rules, name, "{}", self.emitter.note)
        behind = self.source.offset
        yield from self.json.space()
        closing = (yield from self._match(field.close)) if field.close else None
        if closing is None:
            self.source.rewind_to(behind)  # the end was left out
        else:
            self.source.pos = closing.end

    def _calls(self, field: Field, groups: Mapping[str, str]) -> Steps[None]:
        named = field.call_name(groups)
        self.calls.name = self.rules.resolve(named) or "" if named else ""
        if named and not self.calls.name:
            raise NoMatch
        pieces: list[str] = []
        closing = yield from self._body(field, pieces.append)
        body = "".join(pieces)
        whole = closing is not None or field.close is None or _is_whole(field.content, body)
        try:
            calls = field.calls(body, {**groups, **(closing.groups if closing else {})}) if whole else []
        except ValueError:
            calls = []
        if not calls:
            raise Truncated if closing is None and field.close is not None and self.calls.name else NoMatch
        names = [self.rules.resolve(call.name) for call in calls]
        for name, call in zip(names, calls, strict=True):
            if name is None:
                raise NoMatch
            emit_call_text(self.calls, self.rules, name, self._typed(name, call), self.emitter.note)

    def _typed(self, name: str, call: ReadCall) -> str:
        """Return a call's arguments; texts without types are typed by the tool's schema, if the tool is known."""
        types = self.rules.types(name)
        if call.raw is None or types.keys is None:
            return call.arguments
        members = (f"{json_text(key)}: {types.json(key, text)}" for key, text in call.raw.items())
        return "{" + ", ".join(members) + "}"

    def _body(self, field: Field, emit: Callable[[str], None]) -> Steps[Match | None]:
        """Read up to and including the end of a field, and emit the text before it; return the end, None if there was none."""
        source, wanted = self.source, marker_set(field.close.starts if field.close else ())
        while (yield from source.read_to(wanted, emit)) and field.close is not None:
            closing = yield from self._match(field.close)
            if closing is not None:
                source.pos = closing.end
                return closing
            emit(source.buf[source.pos])
            source.pos += 1
        return None


def _is_whole(parser: Content, body: str) -> bool:
    """True if a region without its end may still be complete."""
    return isinstance(parser, Json) or (isinstance(parser, Tags) and parser.is_whole(body))


_NAMES = ("name", "tool", "tool_name", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "params")
"""Keys of a call that every wrapper's reader knows (``CallReader``)."""


def template_format(template: ResponseTemplate, name: str = "declared") -> Format:
    """Return the format that a checkpoint's ``response_template`` declares."""
    wrappers: list[Wrapper] = []
    reasoning_markers: list[ReasoningMarkers] = []
    answer_markers: list[AnswerMarkers] = []
    control_tokens: list[str] = []
    regions: list[Field] = []
    shared = Counter(start for field in template.fields for start in (field.open.starts if field.open else ()))
    ends = Counter(start for field in template.fields for start in (field.close.starts if field.close else ()))
    for field in template.fields:
        closers = field.close.starts if field.close else ()
        if field.open is None:
            control_tokens += closers
        elif field.role == "calls" and _is_plain(field) and field.open.literals:
            wrappers.append(Wrapper(field.open.literals, closers))
        elif field.role == "calls" or any(shared[start] > 1 for start in field.open.starts) or not closers:
            regions.append(field)
        elif field.role == "reasoning":
            reasoning_markers.append(
                ReasoningMarkers(field.open.starts, closers, special=True, alone=all(ends[closer] == 1 for closer in closers))
            )
        else:
            answer_markers.append(AnswerMarkers(field.open.starts, closers, special=True))
    row = Format(
        name,
        families=("a checkpoint's own response_template",),
        auto=False,
        wrappers=tuple(wrappers),
        reasoning_markers=tuple(reasoning_markers),
        answer_markers=tuple(answer_markers),
        control_tokens=tuple(control_tokens),
        implicit=False,
    )
    return with_fields(row, regions)


def with_fields(row: Format, fields: Sequence[Field]) -> Format:
    """Return a format that also has the regions of ``fields``."""
    return replace(row, regions=FieldRegions(tuple(fields))) if fields else row


@dataclass(frozen=True)
class FieldRegions:
    """The regions of ``fields``, as a ``RegionFactory``."""

    fields: tuple[Field, ...]

    @property
    def markers(self) -> tuple[str, ...]:
        """Beginnings of the fields' openings."""
        return tuple(start for field in self.fields if field.open is not None for start in field.open.starts)

    def __call__(self, context: Context) -> Region:
        """Return the reader of these regions."""
        return FieldReader(context, self.fields).open


def _is_plain(field: Field) -> bool:
    """True for JSON with the tool's name and arguments under the usual keys."""
    if not isinstance(field.content, Json) or not field.content.strict:
        return False
    function = field.transform.get("function") if isinstance(field.transform, Mapping) else None
    if field.transform is None or function == "{content}":
        return True
    if not isinstance(function, Mapping):
        return False
    root = "{" if field.each else "{content."
    return all(
        function.get(key) in {f"{root}{known}}}" for known in keys} for key, keys in (("name", _NAMES), ("arguments", _ARGUMENTS))
    )
