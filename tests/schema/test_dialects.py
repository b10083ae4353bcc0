"""Tools in each provider's dialect: schema, shape, and the reason if one is unsupported."""

from __future__ import annotations

import pytest

from patchbay.schema.dialects import DIALECTS
from patchbay.schema.subsets import Unsupported
from patchbay.tools import tool
from patchbay.types import ToolSpec

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ToolSpec("get_weather", "Tell the weather.", CITY)


def shape_of(name: str, spec: ToolSpec) -> dict:
    expressed = DIALECTS[name].express(spec)
    assert not isinstance(expressed, Unsupported)
    return DIALECTS[name].shape(expressed)


@pytest.mark.parametrize("name", list(DIALECTS))
def test_unsupported_tool_has_a_reason(name):
    broken = ToolSpec("broken", "", {"type": "object", "properties": {"a": {"$ref": "https://example.com"}}})
    expressed = DIALECTS[name].express(broken)
    assert isinstance(expressed, Unsupported)
    assert "https://example.com" in expressed.reason


def test_each_shape_is_its_providers():
    function = {"name": "get_weather", "description": "Tell the weather.", "parameters": CITY}
    for name in ("openai", "openai_chat", "qwen", "qwen_realtime", "glm", "stepfun", "stepfun_realtime"):
        assert {"type": "function", "function": function} == shape_of(name, WEATHER)
    for name in ("openai_realtime", "glm_realtime"):
        assert {"type": "function", **function} == shape_of(name, WEATHER)
    for name in ("gemini", "gemini_live"):
        assert function == shape_of(name, WEATHER)
    strict = {**function, "parameters": {**CITY, "additionalProperties": False}, "strict": True}
    assert {"type": "function", "function": strict} == shape_of("openai_strict", WEATHER)


def test_gemini_tool_without_parameters_has_no_parameters_field():
    assert {"name": "ping"} == shape_of("gemini", ToolSpec("ping"))


def test_tool_can_request_strict_mode_if_its_schema_allows_it():
    @tool(strict=True)
    def f(a: int, b: int = 2): ...

    assert f.spec.strict is True
    assert "strict" not in shape_of("openai", f.spec)["function"]
    assert ["a", "b"] == shape_of("openai_strict", f.spec)["function"]["parameters"]["required"]
