"""A declaration as a format of the engine: rows where the engine knows what they describe, regions for the rest.

What a template calls reasoning becomes a row of reasoning, so that it is read like every model's; calls as plain JSON become a
wrapper, so that damaged ones are read too. ``declaredregions`` reads what is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from patchbay.formats.engine.scanner import Region
from patchbay.formats.outside.declaredregions import FieldReader
from patchbay.formats.outside.responsecontent import Json
from patchbay.formats.outside.responsetemplate import Field, ResponseTemplate
from patchbay.formats.parts import Parts
from patchbay.formats.rows import Format, Frame, Thought, Wrapper

_NAMES = ("name", "tool", "tool_name", "function_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input", "params")
"""Keys of a call that every wrapper's reader knows (``callreader``)."""


def template_format(template: ResponseTemplate, name: str = "declared") -> Format:
    """The format that a checkpoint's ``response_template`` declares."""
    wrappers: list[Wrapper] = []
    thoughts: list[Thought] = []
    frames: list[Frame] = []
    leaks: list[str] = []
    regions: list[Field] = []
    shared = Counter(start for field in template.fields for start in (field.open.starts if field.open else ()))
    ends = Counter(start for field in template.fields for start in (field.close.starts if field.close else ()))
    for field in template.fields:
        closers = field.close.starts if field.close else ()
        if field.open is None:
            leaks += closers
        elif field.role == "calls" and _is_plain(field) and field.open.literals:
            wrappers.append(Wrapper(field.open.literals, closers))
        elif field.role == "calls" or any(shared[start] > 1 for start in field.open.starts) or not closers:
            regions.append(field)
        elif field.role == "reasoning":
            thoughts.append(Thought(field.open.starts, closers, loud=True, alone=all(ends[closer] == 1 for closer in closers)))
        else:
            frames.append(Frame(field.open.starts, closers, loud=True))
    row = Format(
        name,
        families=("a checkpoint's own response_template",),
        auto=False,
        wrappers=tuple(wrappers),
        thoughts=tuple(thoughts),
        frames=tuple(frames),
        leaks=tuple(leaks),
        loose=False,
    )
    return with_fields(row, regions)


def with_fields(row: Format, fields: Sequence[Field]) -> Format:
    """A format that also has the regions of ``fields``."""
    return replace(row, regions=FieldRegions(tuple(fields))) if fields else row


@dataclass(frozen=True)
class FieldRegions:
    """``fields``, as what a parser reads."""

    fields: tuple[Field, ...]

    @property
    def markers(self) -> tuple[str, ...]:
        """What their openings begin with."""
        return tuple(start for field in self.fields if field.open is not None for start in field.open.starts)

    def __call__(self, parts: Parts) -> Region:
        """The reader of such markers."""
        return FieldReader(parts, self.fields).open


def _is_plain(field: Field) -> bool:
    """JSON that names the tool and its arguments under the usual keys."""
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
