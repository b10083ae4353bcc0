"""JSON Schemas of tools: built from functions, used for validation, and reduced to the subset that each provider accepts.

Third-party packages are imported on first use only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchbay._lazy import lazy_exports

if TYPE_CHECKING:
    from patchbay.schema.arguments import read_arguments as read_arguments
    from patchbay.schema.function import FunctionSchema as FunctionSchema
    from patchbay.schema.validation import SchemaValidator as SchemaValidator
    from patchbay.schema.validation import ToolValidator as ToolValidator
    from patchbay.schema.validation import ValidationResult as ValidationResult


__all__, __getattr__ = lazy_exports(
    __name__,
    {
        "arguments": "read_arguments",
        "function": "FunctionSchema",
        "validation": "SchemaValidator ToolValidator ValidationResult",
    },
)
