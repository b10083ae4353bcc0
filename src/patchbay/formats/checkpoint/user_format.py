"""A user's own format, read from a TOML file: the markers around calls, and the notation of a call between them.

The file is documented in ``docs/reference/formats.md``. It becomes a row like those of the catalog, and fields of a response
template for bodies that no row describes.
"""

from __future__ import annotations

import re
import tomllib

from patchbay.errors import ConfigurationError
from patchbay.formats.catalog import FORMATS
from patchbay.formats.checkpoint.declarations import Declaration, Pattern, compile_literals, compile_pattern
from patchbay.formats.checkpoint.declared_format import with_fields
from patchbay.formats.checkpoint.response_template import Content, Field, Json, Tags, Trim
from patchbay.formats.spec import Format, ReasoningMarkers, Wrapper, first_part, last_part

_MARKERS = ("body", "open", "close")
_BODIES = {
    "json": (*_MARKERS, "leads", "name_key", "arguments_key"),
    "named": (*_MARKERS, "leads", "separators", "name_is"),
    "python": (*_MARKERS, "leads"),
    "tags": (*_MARKERS, "call", "call_end", "parameter", "parameter_end", "trim"),
}
"""Fields of a table of calls, by the calls' notation."""
_TRIMS: dict[str, Trim] = {"none": "", "line": "line", "space": "space"}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KEY = re.compile(r"\w+(?:\.\w+)*")
_CALL = {"name": "{name}", "arguments": "{content}"}


def user_format(text: str) -> Format:
    """Parse the text of a format file. Raises ConfigurationError that names the wrong field by its path."""
    try:
        declared = Declaration(tomllib.loads(text), "")
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"The format file is not TOML: {error}.") from None
    declared.only("name", "families", "drop", "calls", "reasoning")
    name = declared.text("name")
    if not _NAME.fullmatch(name):
        declared.refuse("name", f"is {name!r}: use lower-case letters, digits and underscores, a letter first")
    if name in FORMATS or name == "auto":
        declared.refuse("name", f"is {name!r}, which is a format that is there already")
    families = declared.texts("families")
    wrappers: list[Wrapper] = []
    fields: list[Field] = []
    control_tokens = list(declared.texts("drop"))
    for index, calls in enumerate(declared.tables("calls")):
        _read_calls(calls, f"calls_{index}", wrappers, fields, control_tokens)
    reasoning_markers = tuple(_reasoning(table) for table in declared.tables("reasoning"))
    if not wrappers and not fields:
        declared.refuse("calls", "is missing: at least one [[calls]] says how calls are marked")
    row = Format(
        name,
        families,
        auto=False,
        wrappers=tuple(wrappers),
        reasoning_markers=reasoning_markers,
        control_tokens=tuple(control_tokens),
        implicit=False,
    )
    return with_fields(row, fields)


def _reasoning(declared: Declaration) -> ReasoningMarkers:
    declared.only("open", "close", "anywhere")
    return ReasoningMarkers(_markers(declared, "open"), _markers(declared, "close"), declared.flag("anywhere", default=False))


def _read_calls(
    declared: Declaration, name: str, wrappers: list[Wrapper], fields: list[Field], control_tokens: list[str]
) -> None:
    body = declared.one_of("body", tuple(_BODIES), "json")
    declared.only(*_BODIES[body])
    if body == "tags":
        fields.append(_tags_field(declared, name))
        control_tokens += [*declared.texts("open"), *declared.texts("close")]
        return
    openers, closers, noise_markers = _markers(declared, "open"), declared.texts("close"), declared.texts("leads")
    separators = _markers(declared, "separators") if body == "named" else ()
    part = declared.one_of("name_is", ("first", "last"), "last") if body == "named" else "last"
    if body == "json" and ("name_key" in declared or "arguments_key" in declared):
        if not closers:
            declared.refuse("close", "is missing: without it nothing says where a call with keys of its own ends")
        call = {key: _placeholder(declared, f"{key}_key", key) for key in ("name", "arguments")}
        fields.append(_field(name, compile_literals(openers, declared.at("open")), closers, Json(), call, each=True))
    else:
        wrappers.append(
            Wrapper(
                openers,
                closers,
                noise_markers=noise_markers,
                separators=separators,
                name=first_part if part == "first" else last_part,
            )
        )


def _tags_field(declared: Declaration, name: str) -> Field:
    """Return the field for calls as tags: one around a call with its name, one around each argument with its key."""
    opening = _tag_pattern(declared, "call", "name")
    ending = _markers(declared, "call_end")
    head = _tag_pattern(declared, "parameter", "key")
    tail = declared.text("parameter_end")
    trim = _TRIMS[declared.one_of("trim", tuple(_TRIMS), "none")]
    return _field(name, opening, ending, Tags(head, tail, left=trim, right=trim), _CALL, each=False)


def _field(name: str, opening: Pattern, closers: tuple[str, ...], content: Content, call: dict[str, str], *, each: bool) -> Field:
    return Field(
        name=name,
        role="calls",
        open=opening,
        close=compile_literals(closers, "close"),
        content=content,
        transform={"type": "function", "function": call},
        each=each,
    )


def _tag_pattern(declared: Declaration, key: str, placeholder: str) -> Pattern:
    """Return the pattern of a tag with a placeholder: ``<call name="{name}">``."""
    text = declared.text(key)
    before, _, after = text.partition("{" + placeholder + "}")
    if not before.strip() or not after or "{" + placeholder + "}" in after:
        declared.refuse(key, f"is {text!r}: it must hold {{{placeholder}}} once, with marks on both sides of it")
    return compile_pattern(f"{re.escape(before)}(?P<{placeholder}>[^{re.escape(after[0])}]+){re.escape(after)}", declared.at(key))


def _placeholder(declared: Declaration, key: str, default: str) -> str:
    value = declared.text(key, default)
    if not _KEY.fullmatch(value):
        declared.refuse(key, f"is {value!r}: use letters, digits and underscores, with dots between the keys of nested objects")
    return "{" + value + "}"


def _markers(declared: Declaration, key: str) -> tuple[str, ...]:
    found = declared.texts(key)
    if not found:
        declared.refuse(key, "is missing")
    if any(not mark.strip() for mark in found):
        declared.refuse(key, "is white space, which marks nothing")
    return found
