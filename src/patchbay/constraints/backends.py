"""Backends: the ways in which model servers take a constraint, and how a server is recognised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal


class Backend(Enum):
    """The way in which a server takes a constraint."""

    LLAMA_CPP = "grammar"
    """llama.cpp: GBNF in ``grammar``."""
    VLLM = "structured_outputs"
    """vLLM from 0.12: EBNF in ``structured_outputs.grammar``."""
    SGLANG = "ebnf"
    """SGLang: EBNF in ``ebnf``."""
    SCHEMA = "response_format"
    """Ollama, LM Studio: a JSON Schema in ``response_format``."""

    def fields(self, grammar: str) -> dict[str, Any]:
        """Return the fields of a request that carry a grammar."""
        return {self.value: {"grammar": grammar} if self is Backend.VLLM else grammar}


@dataclass(frozen=True)
class Constraint:
    """What is added to a request. ``fields`` is empty if there is no constraint; ``reason`` then says why."""

    fields: dict[str, Any]
    reason: str = ""

    @property
    def kind(self) -> Literal["", "grammar", "schema"]:
        """What constrains the reply, "" if nothing does."""
        if not self.fields:
            return ""
        return "schema" if "response_format" in self.fields else "grammar"


NO_CONSTRAINT: Final = Constraint({})

_OWNERS: Final = {
    "llamacpp": Backend.LLAMA_CPP,
    "vllm": Backend.VLLM,
    "sglang": Backend.SGLANG,
    "library": Backend.SCHEMA,  # Ollama
    "organization_owner": Backend.SCHEMA,  # LM Studio
}
"""By the ``owned_by`` of a server's models."""


def backend_of(description: Any) -> Backend | None:
    """Return the backend of a server by its description: llama.cpp's ``/props``, or a list of models; None if it is not known."""
    if not isinstance(description, Mapping):
        return None
    if "chat_template_caps" in description or "default_generation_settings" in description:
        return Backend.LLAMA_CPP
    models = description.get("data")
    owners = [model.get("owned_by") for model in models if isinstance(model, Mapping)] if isinstance(models, list) else []
    return next((_OWNERS[owner] for owner in owners if isinstance(owner, str) and owner in _OWNERS), None)
