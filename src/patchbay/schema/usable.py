"""Whether a provider takes a schema at all: the reason why not is for whoever wrote it.

What lives here: the question, for a schema that others wrote. What does not: what is left out of a schema for one provider
(``subsets``), and arguments checked against one (``validator``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from patchbay.schema.arguments import excerpt
from patchbay.schema.subsets import Inexpressible, openai


def why_unusable(schema: Mapping[str, Any]) -> str | None:
    """Return why no provider takes ``schema`` for the arguments of a tool, None where one may.

    What OpenAI is sent of it must be a JSON Schema: it answers for all tools with an error where one is none, and of all
    providers it takes the most.
    """
    import jsonschema_rs

    told = openai(schema)
    if isinstance(told, Inexpressible):
        return told.reason
    try:
        jsonschema_rs.meta.validate(dict(told))
    except jsonschema_rs.ValidationError as error:
        place = "".join(f"/{part}" for part in error.instance_path) or "(root)"
        return f"its schema is no JSON Schema: {excerpt(f'{place}: {error.message}')}"
    except Exception as error:  # noqa: BLE001  (the schema is foreign, and so is who reads it)
        return f"its schema cannot be read: {excerpt(str(error).partition(chr(10))[0])}"
    return None
