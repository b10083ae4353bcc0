"""Regions that a declaration describes, read from a stream: where a field begins, what it holds, where it ends.

Which regions there are, ``responsetemplate`` and ``userformat`` say; what is a wrapper or reasoning on the engine's own terms is
not read here. Arguments in plain JSON go out as they arrive, every other call when its region is complete. A region that holds no
call of a tool is prose, and so is one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from patchbay.formats.engine.marks import marks
from patchbay.formats.engine.source import CutOff, NotACall, Steps
from patchbay.formats.outside.attempts import Attempt, Match, Pattern, Verdict
from patchbay.formats.outside.jsonvalues import quoted
from patchbay.formats.outside.responsecontent import Content, Json, Tags
from patchbay.formats.outside.responsetemplate import Field, ReadCall
from patchbay.formats.parts import Parts
from patchbay.formats.shapes.jsonarguments import JsonArguments
from patchbay.formats.shapes.jsonmembers import tell_text

_SPARED = 256
"""An opening that is looked at in vain for longer than this hides others inside it."""


class FieldReader:
    """Reads what the openings of ``fields`` open."""

    def __init__(self, parts: Parts, fields: Sequence[Field]) -> None:
        self.source = parts.source
        self.emitter = parts.emitter
        self.calls = parts.calls
        self.rules = parts.rules
        self.json = parts.json
        self._arguments = JsonArguments(parts)
        self._fields: dict[str, list[tuple[Pattern, Field]]] = {}
        for field in fields:
            if field.open is not None:
                for start in field.open.starts:
                    self._fields.setdefault(start, []).append((field.open, field))

    def open(self, marker: str) -> Steps[bool]:
        """Read from where a field may begin; of several that do, the one whose opening is longest."""
        source = self.source
        if self.emitter.opens_code:
            return False  # a word about the marker
        begin, found, seen = source.offset, None, 0
        for pattern, field in self._fields[marker]:
            attempt = pattern.begin(first=begin == 0)
            match = yield from self._match(attempt)
            seen = max(seen, attempt.seen)
            if match is not None and (found is None or match.end > found[0].end):
                found = match, field
        if found is None:
            # What was looked at in vain is not looked at again from each opening inside it: that would take too long.
            source.pos += max(0, seen - _SPARED)
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
        except NotACall:
            return False
        except CutOff:
            self.calls.cut(source.since(begin))
        return True

    def _match(self, attempt: Attempt) -> Steps[Match | None]:
        """The match at ``pos``, which is not read."""
        source = self.source
        while True:
            found = attempt.read(source.buf, source.pos, ended=source.ended)
            if found is not Verdict.MORE:
                return found if isinstance(found, Match) else None
            yield

    def _text(self, field: Field) -> Steps[None]:
        """Read reasoning or prose up to its end, and tell it as it comes."""
        emitter = self.emitter
        is_thought = field.role == "reasoning"
        (emitter.thought_begins if is_thought else emitter.markup)()
        self.source.release()
        yield from self._body(field, emitter.thought if is_thought else emitter.text)
        (emitter.thought_ends if is_thought else emitter.markup)()

    def _named_call(self, field: Field, groups: Mapping[str, str]) -> Steps[None]:
        name = self.rules.resolve(field.call_name(groups))
        if name is None:
            raise NotACall
        self.calls.name = name
        if (yield from self.json.space()) == "{":
            yield from self._arguments.read(name)
        elif field.close is None or (yield from self._match(field.close.begin())) is None:
            raise NotACall
        else:
            tell_text(self.calls, self.rules, name, "{}", self.emitter.note)
        behind = self.source.offset
        yield from self.json.space()
        closing = (yield from self._match(field.close.begin())) if field.close else None
        if closing is None:
            self.source.rewind_to(behind)  # the end was left out
        else:
            self.source.pos = closing.end

    def _calls(self, field: Field, groups: Mapping[str, str]) -> Steps[None]:
        named = field.call_name(groups)
        self.calls.name = self.rules.resolve(named) or "" if named else ""
        if named and not self.calls.name:
            raise NotACall
        pieces: list[str] = []
        closing = yield from self._body(field, pieces.append)
        body = "".join(pieces)
        whole = closing is not None or field.close is None or _is_whole(field.content, body)
        try:
            calls = field.calls(body, {**groups, **(closing.groups if closing else {})}) if whole else []
        except ValueError:
            calls = []
        if not calls:
            raise CutOff if closing is None and field.close is not None and self.calls.name else NotACall
        names = [self.rules.resolve(call.name) for call in calls]
        for name, call in zip(names, calls, strict=True):
            if name is None:
                raise NotACall
            tell_text(self.calls, self.rules, name, self._typed(name, call), self.emitter.note)

    def _typed(self, name: str, call: ReadCall) -> str:
        """A call's arguments: texts without a type by the tool's schema, where the tool is known."""
        types = self.rules.types(name)
        if call.raw is None or types.keys is None:
            return call.arguments
        members = (f"{quoted(key)}: {types.json(key, text)}" for key, text in call.raw.items())
        return "{" + ", ".join(members) + "}"

    def _body(self, field: Field, tell: Callable[[str], None]) -> Steps[Match | None]:
        """Read up to and with the end of a field, and tell what stands before it; the end, None where there was none."""
        source, wanted = self.source, marks(field.close.starts if field.close else ())
        while True:
            end, marker = wanted.next(source, source.pos)
            if end > source.pos:
                tell(source.buf[source.pos : end])
                source.pos = end
            if marker and field.close is not None:
                closing = yield from self._match(field.close.begin())
                if closing is not None:
                    source.pos = closing.end
                    return closing
                tell(source.buf[source.pos])
                source.pos += 1
            elif source.ended:
                return None
            else:
                yield


def _is_whole(parser: Content, body: str) -> bool:
    """Whether a region without its end may still hold all that belongs to it."""
    return isinstance(parser, Json) or (isinstance(parser, Tags) and parser.is_whole(body))
