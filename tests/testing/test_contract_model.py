"""The scripted model knows what its messages say and nothing else: that makes it a witness for the contract and the frames."""

from __future__ import annotations

import json

import pytest

from patchbay import flatten_messages, parse, render_contract
from patchbay.testing import ContractModel
from patchbay.testing.contract_model import read_contract

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Look at the sky.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
]


def ask(question: str, *, contract: str, history: list[dict] | None = None) -> str:
    messages = [{"role": "system", "content": contract}, {"role": "user", "content": question}, *(history or [])]
    return ContractModel()({"messages": messages})


@pytest.mark.parametrize("examples", [True, False])
@pytest.mark.parametrize("tag", ["tool_call", "CALL", "ruf-auf"])
def test_it_reads_the_label_and_the_tools_from_the_prompt(tag, examples):
    contract = render_contract(TOOLS, tool_call_tag=tag, tool_result_tag="answer", include_examples=examples)
    read = read_contract(contract)
    assert (tag, "answer", ["multiply", "get_weather"]) == (read.call_tag, read.result_tag, list(read.tools))
    text = ask("multiply 6 by 7", contract=contract)
    assert f'```{tag}\n{{"name": "multiply", "arguments": {{"a": 6, "b": 7}}}}\n```' in text


def test_it_calls_each_tool_that_the_question_names_with_the_values_of_the_question():
    question = "Multiply 12345678901234567890 by 3 and tell the weather in Paris and in Rome."
    calls = parse(ask(question, contract=render_contract(TOOLS)), tools=TOOLS).tool_calls
    assert [
        ("multiply", '{"a": 12345678901234567890, "b": 3}'),
        ("get_weather", '{"city": "Paris"}'),
        ("get_weather", '{"city": "Rome"}'),
    ] == [(call.name, call.raw_arguments) for call in calls]


def test_it_says_in_every_answer_that_it_is_scripted():
    contract = render_contract(TOOLS)
    for question in ("Multiply 2 by 3", "Sing", "The weather"):
        assert ask(question, contract=contract).startswith("(scripted model)")
    assert ContractModel()({"messages": []}).startswith("(scripted model)")


def test_without_a_contract_it_calls_nothing():
    assert () == parse(ask("Multiply 2 by 3", contract="You are helpful.")).tool_calls


def test_it_answers_with_the_values_of_the_results():
    call = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}
    messages = flatten_messages(
        [
            {"role": "user", "content": "Multiply 6 by 7"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"product": 42, "note": "exact"})},
        ]
    )
    contract = {"role": "system", "content": render_contract(TOOLS)}
    assert "(scripted model) The tools say: product 42, note exact." == ContractModel()({"messages": [contract, *messages]})


def test_a_result_with_fences_in_it_is_read_whole():
    text = "before\n```python\nx\n```\nafter"
    call = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": "{}"}}
    messages = flatten_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": text},
        ]
    )
    contract = {"role": "system", "content": render_contract(TOOLS)}
    assert f"(scripted model) The tools say: {text}." == ContractModel()({"messages": [contract, *messages]})
