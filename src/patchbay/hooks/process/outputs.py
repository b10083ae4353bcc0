"""A tool's output on the wire, the same on both sides: the host's and the SDK's.

``is_async`` is called ``async`` there, and what is empty is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchbay.tools.output import ToolOutput


def shown_output(output: ToolOutput) -> dict[str, Any]:
    """Return a tool's output in the wire's words."""
    shown: dict[str, Any] = {
        "for_llm": output.for_llm,
        "silent": output.silent,
        "is_error": output.is_error,
        "async": output.is_async,
    }
    if output.for_user:
        shown["for_user"] = output.for_user
    if output.media:
        shown["media"] = list(output.media)
    if output.artifact_tags:
        shown["artifact_tags"] = list(output.artifact_tags)
    if output.response_handled:
        shown["response_handled"] = True
    return shown


def output_members(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an output as ToolOutput names them."""
    return {"is_async" if name == "async" else name: value for name, value in told.items()}
