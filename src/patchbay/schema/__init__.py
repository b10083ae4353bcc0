"""JSON Schemas of tools: made from functions, validated against, and reduced to what each provider accepts.

Third-party packages are imported on first use only.
"""

from __future__ import annotations

from patchbay.schema.arguments import read_arguments
from patchbay.schema.function import FunctionSchema
from patchbay.schema.validation import SchemaValidator, ToolValidator, ValidationResult

__all__ = ["FunctionSchema", "SchemaValidator", "ToolValidator", "ValidationResult", "read_arguments"]
