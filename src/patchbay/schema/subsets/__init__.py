"""The subsets of JSON Schema that providers accept: pure functions from a tool's schema to one in the subset, or to a reason.

A subset may be less strict than the schema: arguments are validated against the tool's own schema before it runs, so a bound that
a provider does not support costs one retry at worst. Dropped keywords that a model can follow are added to the description.
"""

from __future__ import annotations

from patchbay.schema.subsets.common import Unsupported
from patchbay.schema.subsets.gemini import gemini
from patchbay.schema.subsets.openai import openai, openai_strict, without_added_nulls

__all__ = ["Unsupported", "gemini", "openai", "openai_strict", "without_added_nulls"]
