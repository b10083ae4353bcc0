"""Conditions on the arguments of a call: ``{"path": "/etc/*", "amount": {"gt": 100}}``.

A condition holds, does not hold, or cannot be told: there is no value, or one that it cannot be applied to.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from patchbay.errors import ConfigurationError
from patchbay.tools import well_formed

Test: TypeAlias = Callable[[Any], bool | None]
"""Whether a value passes; None where that cannot be told."""

_NO_VALUE: Final = object()
_OPERATORS: Final = ("glob", "regex", "gt", "ge", "lt", "le", "eq", "in", "not", "missing")
_LARGEST: Final = 10**100
_COMPOSED: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf"})


@dataclass(frozen=True, slots=True)
class Condition:
    """A test of one argument. ``path`` is its name; dots lead into objects, and every item of a list is tested.

    ``missing`` is what holds where there is no value, None where nothing is said of that.
    """

    path: str
    test: Test
    missing: bool | None = None

    def holds(self, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> bool | None:
        """Return whether it holds for these arguments; None where that cannot be told.

        An argument that is left out has the default that the tool's ``schema`` declares. Of one that the schema does not
        declare at all, no condition holds.
        """
        if "_raw" in arguments and _declared(schema, "_raw") is None:
            return None  # what the model wrote is no JSON: a callback is given it as it is
        found = list(_values(arguments, self.path))
        if all(each is _NO_VALUE for each in found) and found:
            declared = _declared(schema, self.path)
            if declared is None and self.missing is None:
                return False
            found = [(declared or {}).get("default", _NO_VALUE)]
        results = {self.missing if each is _NO_VALUE or each is None else self.test(each) for each in found}
        if results == {True}:
            return True
        return False if results <= {False} else None


def read_conditions(given: Any) -> tuple[Condition, ...]:
    """Read the conditions of a rule. Raises ConfigurationError."""
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
    """Return the test that a configuration describes. A text is a pattern, an object has operators, all else is a value."""
    if isinstance(wanted, str):
        return _glob(wanted)
    if not isinstance(wanted, Mapping):
        return _one_of([wanted], place)
    if not wanted:
        raise ConfigurationError(f"{place} has no operator: use some of {', '.join(_OPERATORS)}.")
    tests = [_operator(name, operand, f"{place}.{name}") for name, operand in wanted.items()]

    def all_pass(value: Any) -> bool | None:
        results = {test(value) for test in tests}
        return False if False in results else None if None in results else True

    return all_pass if len(tests) > 1 else tests[0]


def _operator(name: Any, operand: Any, place: str) -> Test:
    match name:
        case "glob" | "regex":
            if not isinstance(operand, str):
                raise ConfigurationError(f"{place} must be a text, not {operand!r:.80}.")
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
            return lambda value: None if (passes := test(value)) is None else not passes
    meant = difflib.get_close_matches(str(name), _OPERATORS, n=1)
    hint = f"is {meant[0]!r} meant?" if meant else f'there are {", ".join(_OPERATORS)}; for nested arguments write "a.b".'
    raise ConfigurationError(f"{place} is no operator: {hint}")


def _glob(pattern: str) -> Test:
    def passes(value: Any) -> bool | None:
        text = _text(value)
        if text is None or ("/" in pattern and _is_indirect(text)):
            return None
        fits = fnmatchcase(text, pattern)
        if "/" in pattern and text.endswith(("/", "\\")) and fits is not fnmatchcase(text[:-1], pattern):
            return None  # the same folder is written with the slash and without
        return fits

    return passes


def _is_indirect(path: str) -> bool:
    """Whether a path is written in a way that a pattern says nothing about: ``/tmp/../etc``, ``/etc//ssh``, ``file:///etc``."""
    first, *steps = path.replace("\\", "/").replace("://", ":/", 1).split("/")
    return not {".", ".."}.isdisjoint((first, *steps)) or "" in steps[:-1]


def _regex(pattern: str, place: str) -> Test:
    """Return a search for ``pattern``. The engine takes time linear in the text for every pattern that it accepts."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        found_in = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError as error:
        why = str(error).rstrip().rpartition("\n")[2].strip().removeprefix("error: ")
        raise ConfigurationError(f"{place} is no regular expression that can be used: {why:.200}.") from None

    def passes(value: Any) -> bool | None:
        text = _text(value)
        if text is None or well_formed(text) != text:  # the engine takes no half of a surrogate pair
            return None
        return bool(found_in(text))

    return passes


def _comparison(name: str, bound: Any, place: str) -> Test:
    if not (_is_number(bound) or isinstance(bound, str)):
        raise ConfigurationError(f"{place} must be a number or a text, not {bound!r:.80}.")

    def passes(value: Any) -> bool | None:
        if not (_is_number(value) if _is_number(bound) else isinstance(value, str)):
            return None
        match name:
            case "gt":
                return bool(value > bound)
            case "ge":
                return bool(value >= bound)
            case "lt":
                return bool(value < bound)
        return bool(value <= bound)

    return passes


def _one_of(wanted: Any, place: str) -> Test:
    for each in wanted:
        if not (isinstance(each, str | bool) or _is_number(each)):
            raise ConfigurationError(f"{place} must be a text, a number, true or false, not {each!r:.80}.")

    def passes(value: Any) -> bool | None:
        alike = [each for each in wanted if _kind(each) is _kind(value)]
        return value in alike if alike else None

    return passes


def _kind(value: Any) -> type[Any] | None:
    """Return which values can be compared with this one: to Python 1 and True are the same."""
    return float if _is_number(value) else next((kind for kind in (bool, str) if isinstance(value, kind)), None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value  # (NaN is not)


def _text(value: Any) -> str | None:
    """Return the text that a pattern is applied to; None for what has none."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < _LARGEST) else None


def _values(value: Any, path: str) -> Iterator[Any]:
    """Yield what is at a path: nothing for an empty list, and _NO_VALUE for each place where it ought to be and is not."""
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif not path:
        yield value
    elif isinstance(value, Mapping):
        inner = [(name, path[len(name) + 1 :]) for name in value if path == name or path.startswith(f"{name}.")]
        for name, rest in inner:  # both "a.b" and "b" in "a": none may be overlooked
            yield from _values(value[name], rest)
        if not inner:
            yield _NO_VALUE
    else:
        yield _NO_VALUE


def _declared(schema: Any, path: str) -> Mapping[str, Any] | None:
    """Return what a JSON Schema says of the argument at ``path``; None where it has none of that name."""
    if not path:
        return schema if isinstance(schema, Mapping) else {}
    if isinstance(schema, Mapping) and isinstance(schema.get("items"), Mapping):
        schema = schema["items"]
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    for name, inner in properties.items() if isinstance(properties, Mapping) else ():
        if path == name or path.startswith(f"{name}."):
            return _declared(inner, path[len(name) + 1 :])
    return {} if isinstance(schema, Mapping) and not _COMPOSED.isdisjoint(schema) else None
