"""Forms are exact: where all keywords of a schema are enforced, what a grammar and a call's schema accept is what the schema accepts."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

from patchbay.constraints.calls import OfferedTool
from patchbay.constraints.json_schema import call_schema
from patchbay.constraints.schemas import compile_schema
from patchbay.types import ToolSpec
from support.repeated import examples

from .drawn_tools import ESCAPED, damaged, draw_schema, draw_value
from .matchers import Matcher, grammar_of


def closed(schema: Any) -> Any:
    """The schema without the keys that it allows and does not name: a grammar leaves them out."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner = {key: value if key in ("enum", "required") else closed(value) for key, value in schema.items()}
    return inner | ({"additionalProperties": False} if "properties" in schema and "type" in schema else {})


def offered_call(rng: random.Random) -> tuple[ToolSpec, Any]:
    """A tool with a drawn argument, and a value of it that fits or has one change."""
    schema = draw_schema(rng, rng.choice([0, 1, 1, 2]))
    compiled = compile_schema(schema)
    assert () == compiled.unenforced
    value = draw_value(rng, compiled.form, ESCAPED)
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return ToolSpec("look", "", parameters), {"a": value if rng.random() < 0.3 else damaged(rng, value)}


def test_grammar_and_schema_of_a_call_accept_what_the_tools_schema_accepts() -> None:
    found = Counter[bool]()
    for seed in range(examples(125)):
        spec, arguments = offered_call(random.Random(seed))
        is_valid = jsonschema_rs.validator_for(closed(spec.parameters), validate_formats=True).is_valid(arguments)
        call = {"name": spec.name, "arguments": arguments}
        schema = call_schema([OfferedTool(spec, compile_schema(spec.parameters))])
        assert is_valid is jsonschema_rs.validator_for(schema).is_valid(call), seed
        assert is_valid is Matcher(grammar_of("bare_json", [spec])).accepts(json.dumps(call, ensure_ascii=False)), seed
        found[is_valid] += 1
    assert min(found[True], found[False]) > 30
