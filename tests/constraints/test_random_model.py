"""Replies of a real llama.cpp server whose model has random weights: each call that comes is the grammar's work."""

from __future__ import annotations

import importlib.util
import json
import random
import urllib.request

import jsonschema_rs
import pytest

from patchbay.constraints.calls import OfferedTool
from patchbay.constraints.json_schema import call_schema
from patchbay.constraints.schemas import compile_schema
from patchbay.formats import parse
from support.chat_clients import chat, wrapped_client
from support.scripted_server import PATIENCE

from .custom_tools import PATCHES, tools_of, with_grammar
from .drawn_tools import draw_tools
from .matchers import LarkMatcher
from .random_replies import random_server, run

COUNT = 300
_MISSING = [name for name in ("xllamacpp", "gguf", "numpy") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(_MISSING), reason=f"not installed: {_MISSING} (pip install --no-deps -r tests/real_model/requirements.txt)"
    ),
]


def test_no_reply_has_an_invalid_call() -> None:
    tally = run(COUNT, seed=1)
    assert [] == tally.invalid
    assert COUNT / 2 < tally.counts["calls"]
    assert tally.counts["cut"] < COUNT / 5


def test_reply_of_a_call_schema_is_a_valid_call() -> None:
    whole = 0
    with random_server(seed=1) as url:
        for seed in range(30):
            specs = draw_tools(random.Random(seed))
            schema = call_schema([OfferedTool(spec, compile_schema(spec.parameters)) for spec in specs])
            body = {
                "messages": [{"role": "user", "content": "Go."}],
                "max_tokens": 300,
                "seed": seed,
                "response_format": {"type": "json_schema", "json_schema": {"name": "call", "strict": True, "schema": schema}},
            }
            sent = urllib.request.Request(
                f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(sent, timeout=PATIENCE) as answer:  # (it fails for a schema that is refused)
                choice = json.load(answer)["choices"][0]
            if choice["finish_reason"] == "stop":
                [call] = parse(choice["message"]["content"], specs).tool_calls
                spec = next(spec for spec in specs if spec.name == call.name)
                errors = jsonschema_rs.validator_for(dict(spec.parameters)).iter_errors(call.arguments)
                # llama.cpp's own grammar of a schema has no patterns with \d and \w.
                assert [] == [error.message for error in errors if error.schema_path[-1] != "pattern"]
                whole += 1
    assert whole > 10


def test_each_patch_is_one_of_the_grammar_of_its_tool() -> None:
    own, written = LarkMatcher(PATCHES), set[str]()
    with random_server(seed=1) as url:
        client = wrapped_client(f"{url}/v1", tools="text", constrain="force", choice_rounds=0)
        for seed in range(24):
            choice = chat(
                client, "random", stream=seed % 2 == 1, tools=tools_of(with_grammar("lark", PATCHES)), tool_choice="required", seed=seed,
                temperature=1.2, max_tokens=1000, parallel_tool_calls=False, extra_body={"logit_bias": [["\n", 4]]},
            ).first  # fmt: skip
            if choice.finish_reason == "tool_calls":
                [(name, arguments)] = choice.calls
                patch = json.loads(arguments)["input"]
                assert ("patch", patch) == (name, own.accepted_part(patch))
                assert own.accepts(patch)
                written.add(patch)
    assert 12 < len(written)
