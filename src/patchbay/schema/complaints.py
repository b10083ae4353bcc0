"""What is wrong with a call's arguments, as lines for a model: a JSON pointer and what was expected there.

Both validators' errors end here, so that a model reads one language: ``/a must be integer``, ``(root) must
have required property 'city'``.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from patchbay.schema.arguments import excerpt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_LIMIT = 20
_SHOULD = re.compile(r"^[\w ]+? should ")


def pydantic_complaints(error: Any, arguments: Any) -> tuple[str, ...]:
    """Return the lines for a ``pydantic.ValidationError``; ``arguments`` are what was validated."""
    return _bounded(_pydantic_line(item, arguments) for item in error.errors(include_url=False))


def schema_complaints(errors: Iterable[Any]) -> tuple[str, ...]:
    """Return the lines for the errors of ``jsonschema_rs``."""
    return _bounded(f"{pointer(error.instance_path)} {_schema_message(error)}" for error in errors)


def pointer(path: Sequence[str | int]) -> str:
    """Return ``path`` as a JSON pointer, ``(root)`` where it is empty."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path) or "(root)"


def _bounded(lines: Iterable[str]) -> tuple[str, ...]:
    unique = list(dict.fromkeys(lines))
    if len(unique) > _LIMIT:
        unique[_LIMIT:] = [f"... and {len(unique) - _LIMIT} more"]
    return tuple(unique)


def _pydantic_line(item: dict[str, Any], arguments: Any) -> str:
    path = list(item["loc"])
    if item["type"] in ("missing", "missing_argument"):
        *path, name = path
        return f"{pointer(_real_path(path, arguments))} must have required property {name!r}"
    message = item["msg"]
    if item["type"] in ("value_error", "assertion_error"):
        message = f"is not accepted: {item['ctx']['error']}" if "ctx" in item else message
    elif item["type"] == "extra_forbidden":
        message = "is not a known property"
    else:
        message = _SHOULD.sub("must ", message)
    return f"{pointer(_real_path(path, arguments))} {message}"


def _real_path(location: Sequence[str | int], arguments: Any) -> list[str | int]:
    """Leave out what pydantic puts into a location that is not in the data: the name of a union's branch."""
    path: list[str | int] = []
    here = arguments
    for part in location:
        in_list = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if in_list or (isinstance(here, dict) and part in here):
            here = here[part]
            path.append(part)
    return path


def _schema_message(error: Any) -> str:
    kind = error.kind
    detail = kind.as_dict()
    match kind.name:
        case "type":
            return f"must be {' or '.join(sorted(detail['types'], key='null'.__eq__))}"
        case "required":
            return f"must have required property {detail['property']!r}"
        case "additionalProperties" | "unevaluatedProperties":
            return f"must NOT have additional properties: {', '.join(map(repr, detail['unexpected']))}"
        case "enum":
            return f"must be equal to one of the allowed values: {_values(detail['options'])}"
        case "const":
            return f"must be equal to {_values([detail['expected_value']])}"
        case "anyOf" | "oneOf":
            return _branches(error, detail)
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum":
            return f"must be {_COMPARISONS[kind.name]} {detail['limit']}"
        case "minLength" | "maxLength":
            return f"must NOT have {_BOUNDS[kind.name]} than {detail['limit']} characters"
        case "minItems" | "maxItems":
            return f"must NOT have {_BOUNDS[kind.name]} than {detail['limit']} items"
        case "minProperties" | "maxProperties":
            return f"must NOT have {_BOUNDS[kind.name]} than {detail['limit']} properties"
        case "pattern":
            return f"must match pattern {detail['pattern']!r}"
        case "format":
            return f"must match format {detail['format']!r}"
        case "multipleOf":
            return f"must be multiple of {detail['multiple_of']}"
        case "uniqueItems":
            return "must NOT have duplicate items"
        case "falseSchema":
            return "must NOT be given"
        case _:
            return f"does not fit {kind.name!r}: {excerpt(error.message)}"


def _branches(error: Any, detail: dict[str, Any]) -> str:
    """Say what each branch of an anyOf or oneOf expected, so that the next call can pick one."""
    expected = [_branch(branch, len(error.instance_path)) for branch in detail["context"]]
    if error.kind.name == "oneOf" and any(not branch for branch in detail["context"]):
        return "must match exactly one schema in oneOf, but matches several"
    return " or ".join(dict.fromkeys(line for line in expected if line)) or f"must match a schema in {error.kind.name}"


def _branch(errors: Sequence[Any], depth: int) -> str:
    if not errors:
        return ""
    first = errors[0]
    below = first.instance_path[depth:] if len(first.instance_path) > depth else []
    message = _schema_message(first)
    return f"{pointer(below)} {message}" if below else message


def _values(values: Sequence[Any]) -> str:
    shown = [json.dumps(value, ensure_ascii=False, default=str) for value in values[:_LIMIT]]
    return ", ".join(shown) + (", ..." if len(values) > _LIMIT else "")


_COMPARISONS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_BOUNDS = {
    "minLength": "fewer",
    "maxLength": "more",
    "minItems": "fewer",
    "maxItems": "more",
    "minProperties": "fewer",
    "maxProperties": "more",
}
