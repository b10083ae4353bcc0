"""What arguments a tool takes, whether a call's arguments fit, and how a provider is told of both.

What lives here: JSON Schema from a function (``function``; ``hints``, ``annotations``, ``docstrings``, ``pydantic_model``),
the check against schemas that others wrote (``validator``, with ``coercion`` and ``messages``), how a call's argument text is
read (``arguments``), and the parts of JSON Schema and the names that providers take (``dialects``, with ``subsets`` and
``names``). What does not: what a tool is and how it runs (``patchbay.tools``). Third-party packages are imported on first use
only.
"""

from __future__ import annotations

from patchbay.schema.arguments import read_arguments
from patchbay.schema.function import FunctionSchema
from patchbay.schema.validation import SchemaValidator, ToolValidator, ValidationResult

__all__ = ["FunctionSchema", "SchemaValidator", "ToolValidator", "ValidationResult", "read_arguments"]
