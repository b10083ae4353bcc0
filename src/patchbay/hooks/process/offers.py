"""The tools that a process offers in its answer to hello: those that are tools, and what is wrong with the others."""

from __future__ import annotations

from typing import Any

from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.schema import SchemaValidator
from patchbay.types import ToolSpec


def read_offers(tools: Any) -> tuple[tuple[ToolSpec, ...], tuple[str, ...]]:
    """Return the tools that can be offered to a model, the first of each name, and why others cannot."""
    offered: dict[str, ToolSpec] = {}
    problems = []
    for tool in tools if isinstance(tools, list) else [] if tools is None else [tools]:
        try:
            spec = read_offer(tool)
        except (InvalidRequestError, ConfigurationError) as error:
            problems.append(str(error))
        else:
            offered.setdefault(spec.name, spec)
    return tuple(offered.values()), tuple(problems)


def read_offer(tool: Any) -> ToolSpec:
    """Return one tool. Raises InvalidRequestError for what is none, ConfigurationError for a schema that cannot be used."""
    spec = ToolSpec.from_openai(tool)
    SchemaValidator(spec.name, spec.parameters).check()
    return spec
