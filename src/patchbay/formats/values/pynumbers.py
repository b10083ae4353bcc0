"""What Python's unquoted words say in JSON: numbers, constants, and arithmetic of numbers.

Only text comes in and JSON text goes out. Arithmetic is computed by a small machine of its own, never by the interpreter:
operands, exponents and results are bounded, so no text can make it costly. What is none of these (names, calls, amounts with a
unit) is left to whoever knows the schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"-?[0-9]+")
_LONG_INTEGER = re.compile(r"[+-]?[1-9][0-9_]*[0-9]")
_NUMBER_START = re.compile(r"[+-]?\.?[0-9]")
_CURRENCIES = "$€£¥₹"
_AMOUNT = re.compile(r"(?:0|[1-9][0-9]*|[1-9][0-9]{0,2}(?:,[0-9][0-9][0-9])+)(?:\.[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}/[0-9]{1,2}/[0-9]{2,4}")
_TOKEN = re.compile(
    r"[ \t\r\n]*(?:(?P<number>(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<name>[a-z]+\.[a-z]+)|(?P<operator>\*\*|//|[-+*/%()]))"
)
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NAMES = {f"{module}.{name}": getattr(math, name) for module in ("math", "np", "numpy") for name in ("pi", "e")}
_BINDING = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "negative": 3, "positive": 3, "**": 4}
_NUMBER_ROOM = 64
_EXPRESSION_ROOM = 200
_MOST_BITS = 4096

Number = int | float


def constant(text: str) -> str | None:
    """JSON for Python's and JSON's constants, or None."""
    return _CONSTANTS.get(text)


def number(text: str) -> str | None:
    """JSON for a number that Python reads (``1_000``, ``.5``, ``0x1f``, ``+5``), or None. What is JSON already stays as it is."""
    if _JSON_NUMBER.fullmatch(text):
        return text if _INTEGER.fullmatch(text) or math.isfinite(float(text)) else None
    if _LONG_INTEGER.fullmatch(text):
        return None if "__" in text else text.lstrip("+").replace("_", "")
    value = _small_number(text)
    return None if value is None or not math.isfinite(value) else repr(value)


def _small_number(text: str) -> Number | None:
    if len(text) > _NUMBER_ROOM or not text.isascii() or not _NUMBER_START.match(text):
        return None
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text) if set(text) & set(".eE") else None
    except ValueError:
        return None


def amount(text: str) -> str | None:
    """JSON for the number in a sum of money, or in one whose thousands are set apart by commas (``$5,000``), or None."""
    digits = text.lstrip(_CURRENCIES).lstrip(" ")
    if digits == text and "," not in text:
        return None
    return digits.replace(",", "") if _AMOUNT.fullmatch(digits) else None


def computed(text: str) -> str | None:
    """JSON for the result of arithmetic (``2*math.pi``, ``(1 + 0.05) ** 4``), or None. A date is not a difference."""
    if len(text) > _EXPRESSION_ROOM or _DATE.fullmatch(text):
        return None
    try:
        result = _compute(text)
    except (ValueError, ArithmeticError):
        return None
    if isinstance(result, int):
        return str(result) if result.bit_length() <= _MOST_BITS else None
    return repr(result) if math.isfinite(result) else None


def _compute(text: str) -> Number:
    """Compute by precedence, with a stack of operands and one of operators; raises ValueError for what is no arithmetic."""
    operands: list[Number] = []
    operators: list[str] = []
    due = True  # an operand is due
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError
        position = found.end()
        operator = found["operator"]
        if operator is None or operator == "(":
            if not due:
                raise ValueError
            if operator is None:
                operands.append(_operand(found["number"], found["name"]))
                due = False
            else:
                operators.append("(")
        elif operator == ")":
            if due:
                raise ValueError
            _settle(operands, operators, above=0)
            if not operators:
                raise ValueError
            operators.pop()
        elif due:
            if operator not in "+-":
                raise ValueError
            operators.append("negative" if operator == "-" else "positive")
        else:
            _settle(operands, operators, above=_BINDING[operator] - (operator != "**"))
            operators.append(operator)
            due = True
    if due:
        raise ValueError
    _settle(operands, operators, above=0)
    if operators:
        raise ValueError
    return operands.pop()


def _operand(digits: str | None, name: str | None) -> Number:
    value = _small_number(digits) if digits is not None else _NAMES.get(name or "")
    if value is None:
        raise ValueError
    return value


def _settle(operands: list[Number], operators: list[str], *, above: int) -> None:
    """Carry out the operators on top that bind tighter than ``above``."""
    while operators and _BINDING[operators[-1]] > above:
        operator = operators.pop()
        right = operands.pop()
        if operator in ("negative", "positive"):
            operands.append(-right if operator == "negative" else right)
        elif operator == "**":
            operands[-1] = _power(operands[-1], right)
        else:
            operands[-1] = _OPERATIONS[operator](operands[-1], right)


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MOST_BITS:
        raise ValueError
    result = base**exponent
    if isinstance(result, (int, float)):
        return result
    raise ValueError  # a complex number


_OPERATIONS: dict[str, Callable[[Number, Number], Number]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}
