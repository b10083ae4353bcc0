"""JSON Schemas of tools: built from functions, used for validation, and reduced to the subset that each provider accepts.

Third-party packages are imported on first use only.
"""

from __future__ import annotations

from patchbay.schema.arguments import read_arguments
from patchbay.schema.function import FunctionSchema
from patchbay.schema.validation import SchemaValidator, ToolValidator, ValidationResult

__all__ = ["FunctionSchema", "SchemaValidator", "ToolValidator", "ValidationResult", "read_arguments"]
