"""What arguments a tool takes, and whether a call's arguments fit.

What lives here: JSON Schema from a function (``function``, with ``docstrings`` and ``pydantic_model``), the
check against schemas that others wrote (``validator``, with ``coercion`` and ``complaints``), and how a
call's argument text is read (``arguments``). What does not: what a tool is and how it runs
(``patchbay.tools``). Third-party packages are imported on first use only.
"""

from __future__ import annotations

from patchbay.schema.arguments import read_arguments
from patchbay.schema.function import FunctionSchema
from patchbay.schema.validator import SchemaValidator, ToolValidator, ValidationResult

__all__ = ["FunctionSchema", "SchemaValidator", "ToolValidator", "ValidationResult", "read_arguments"]
