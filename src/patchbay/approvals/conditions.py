"""Conditions of approval rules on a call's arguments: ``{"path": "/etc/*", "amount": {"gt": 100}}``.

A condition has a set of possible results: True, False, and None where it is undecidable, since there is no value, or one of a
type that it does not apply to. There are several for several values, and for a path that tools read in several ways.
"""

from __future__ import annotations

import difflib
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from itertools import product
from typing import Any, Final, TypeAlias

from patchbay.approvals.paths import PathPattern
from patchbay.errors import ConfigurationError
from patchbay.tools import well_formed

Results: TypeAlias = AbstractSet[bool | None]
Test: TypeAlias = Callable[[Any], Results]

UNDECIDABLE: Final[Results] = frozenset({None})

_NO_VALUE: Final = object()
_OPERATORS: Final = ("glob", "regex", "gt", "ge", "lt", "le", "eq", "in", "not", "missing")
_LARGEST: Final = 10**100
_COMPOSED: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of the argument at ``path``: dots lead into objects, every item of a list is tested.

    ``missing`` is the result for a missing value.
    """

    path: str
    test: Test
    missing: bool | None = None

    def results(self, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> Results:
        """Return the possible results for these arguments.

        A missing argument has the default of the tool's ``schema``; one that the schema does not declare makes it false.
        """
        if "_raw" in arguments and _subschema(schema, "_raw") is None:
            return UNDECIDABLE  # invalid JSON of the model, which callbacks receive as it is
        values = list(_values(arguments, self.path))
        if all(each is _NO_VALUE for each in values) and values:
            declared = _subschema(schema, self.path)
            if declared is None and self.missing is None:
                return {False}
            values = [(declared or {}).get("default", _NO_VALUE)]
        found = ({self.missing} if each is _NO_VALUE or each is None else self.test(each) for each in values)
        return frozenset().union(*found) or {False}


def both(first: Results, second: Results) -> Results:
    """Return the possible results of two conditions together."""
    return {False if False in pair else None if None in pair else True for pair in product(first, second)}


def read_conditions(given: Any) -> tuple[Condition, ...]:
    """Compile the conditions of a rule. Raises ConfigurationError."""
    if not isinstance(given, Mapping) or not all(isinstance(path, str) and path for path in given):
        raise ConfigurationError(f"when must be an object of arguments and what they must be, not {given!r:.80}.")
    return tuple(_condition(path, wanted) for path, wanted in given.items())


def _condition(path: str, wanted: Any) -> Condition:
    place, missing = f"when.{path}", None
    if isinstance(wanted, Mapping) and "missing" in wanted:
        missing = wanted["missing"]
        if not isinstance(missing, bool):
            raise ConfigurationError(f"{place}.missing must be true or false, not {missing!r:.80}.")
        wanted = {name: each for name, each in wanted.items() if name != "missing"}
    return Condition(path, _test(wanted, place), missing)


def _test(wanted: Any, place: str) -> Test:
    """Compile a test: a text is a pattern, an object has operators, anything else is a value to equal."""
    if isinstance(wanted, str):
        return _glob(wanted)
    if not isinstance(wanted, Mapping):
        return _one_of([wanted], place)
    if not wanted:
        raise ConfigurationError(f"{place} has no operator: use some of {', '.join(_OPERATORS)}.")
    tests = [_operator(name, operand, f"{place}.{name}") for name, operand in wanted.items()]

    return lambda value: reduce(both, [test(value) for test in tests])


def _operator(name: Any, operand: Any, place: str) -> Test:
    match name:
        case "glob" | "regex":
            if not isinstance(operand, str):
                raise ConfigurationError(f"{place} must be a string, not {operand!r:.80}.")
            return _glob(operand) if name == "glob" else _regex(operand, place)
        case "gt" | "ge" | "lt" | "le":
            return _comparison(name, operand, place)
        case "eq":
            return _one_of([operand], place)
        case "in":
            if not isinstance(operand, list | tuple):
                raise ConfigurationError(f"{place} must be a list of values, not {operand!r:.80}.")
            return _one_of(operand, place)
        case "not":
            test = _test(operand, place)
            return lambda value: {None if each is None else not each for each in test(value)}
    meant = difflib.get_close_matches(str(name), _OPERATORS, n=1)
    hint = f"is {meant[0]!r} meant?" if meant else f'there are {", ".join(_OPERATORS)}; for nested arguments write "a.b".'
    raise ConfigurationError(f"{place} is not an operator: {hint}")


def _glob(pattern: str) -> Test:
    path = PathPattern(pattern) if "/" in pattern else None

    def results(value: Any) -> Results:
        text = _text(value)
        if text is None:
            return UNDECIDABLE
        return {fnmatchcase(text, pattern)} if path is None else path.results(text)

    return results


def _regex(pattern: str, place: str) -> Test:
    """Compile a regular expression with Rust's engine, which is linear in the text for every pattern."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        found_in = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError as error:
        why = str(error).rstrip().rpartition("\n")[2].strip().removeprefix("error: ")
        raise ConfigurationError(f"{place} is not a usable regular expression: {why:.200}.") from None

    def results(value: Any) -> Results:
        text = _text(value)
        if text is None or well_formed(text) != text:  # the engine rejects lone surrogates
            return UNDECIDABLE
        return {bool(found_in(text))}

    return results


def _comparison(name: str, bound: Any, place: str) -> Test:
    if not (_is_number(bound) or isinstance(bound, str)):
        raise ConfigurationError(f"{place} must be a number or a string, not {bound!r:.80}.")
    compare: Callable[[Any, Any], Any] = getattr(operator, name)

    def results(value: Any) -> Results:
        if not (_is_number(value) if _is_number(bound) else isinstance(value, str)):
            return UNDECIDABLE
        return {bool(compare(value, bound))}

    return results


def _one_of(wanted: Any, place: str) -> Test:
    for each in wanted:
        if not (isinstance(each, str | bool) or _is_number(each)):
            raise ConfigurationError(f"{place} must be a string, a number, true or false, not {each!r:.80}.")

    def results(value: Any) -> Results:
        alike = [each for each in wanted if _kind(each) is _kind(value)]
        return {value in alike} if alike else UNDECIDABLE

    return results


def _kind(value: Any) -> type[Any] | None:
    """Return the type that a value compares as: to Python 1 and True are equal."""
    return float if _is_number(value) else next((kind for kind in (bool, str) if isinstance(value, kind)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # (NaN is not)


def _text(value: Any) -> str | None:
    """Return the text that a pattern is applied to, or None."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < _LARGEST) else None


def _values(value: Any, path: str) -> Iterator[Any]:
    """Yield the values at a path, and _NO_VALUE where one is missing; nothing for an empty list."""
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif not path:
        yield value
    elif isinstance(value, Mapping):
        inner = [(name, path[len(name) + 1 :]) for name in value if path == name or path.startswith(f"{name}.")]
        for name, rest in inner:  # both the key "a.b" and "b" in "a"
            yield from _values(value[name], rest)
        if not inner:
            yield _NO_VALUE
    else:
        yield _NO_VALUE


def _subschema(schema: Any, path: str) -> Mapping[str, Any] | None:
    """Return the JSON Schema of the argument at ``path``; None if it is not declared."""
    if not path:
        return schema if isinstance(schema, Mapping) else {}
    if isinstance(schema, Mapping) and isinstance(schema.get("items"), Mapping):
        schema = schema["items"]
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        if path == name or path.startswith(f"{name}."):
            return _subschema(inner, path[len(name) + 1 :])
    return {} if isinstance(schema, Mapping) and not _COMPOSED.isdisjoint(schema) else None
