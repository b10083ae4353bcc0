"""The scripted model knows what its messages say and nothing else: that makes it a witness for the contract and the frames."""

from __future__ import annotations

import json

import pytest

from patchbay import flatten_messages, parse, render_contract
from patchbay.testing import ContractModel
from patchbay.testing.models import choose_calls, read_contract


def function(name: str, description: str = "", **properties: dict) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TOOLS = [function("multiply", a=NUMBER, b=NUMBER), function("get_weather", "Look at the sky.", city=TEXT)]


def ask(question: str, *, contract: str, history: list[dict] | None = None) -> str:
    messages = [{"role": "system", "content": contract}, {"role": "user", "content": question}, *(history or [])]
    return ContractModel()({"messages": messages})


@pytest.mark.parametrize("examples", [True, False])
@pytest.mark.parametrize("tag", ["tool_call", "CALL", "ruf-auf"])
def test_contract_model_reads_label_and_tools_from_the_prompt(tag, examples):
    contract = render_contract(TOOLS, tool_call_tag=tag, tool_result_tag="answer", include_examples=examples)
    read = read_contract(contract)
    assert (tag, "answer", ["multiply", "get_weather"]) == (read.call_tag, read.result_tag, list(read.tools))
    text = ask("multiply 6 by 7", contract=contract)
    assert f'```{tag}\n{{"name": "multiply", "arguments": {{"a": 6, "b": 7}}}}\n```' in text


def test_contract_model_calls_each_named_tool_with_values_of_the_question():
    question = "Multiply 12345678901234567890 by 3 and tell the weather in Paris and in Rome."
    calls = parse(ask(question, contract=render_contract(TOOLS)), tools=TOOLS).tool_calls
    assert [
        ("multiply", '{"a": 12345678901234567890, "b": 3}'),
        ("get_weather", '{"city": "Paris"}'),
        ("get_weather", '{"city": "Rome"}'),
    ] == [(call.name, call.raw_arguments) for call in calls]


def chosen(question: str, **tools: dict) -> list[tuple[str, dict]]:
    return choose_calls(tools, question)


ONE_TEXT = {"properties": {"thing": TEXT}, "required": ["thing"]}


@pytest.mark.parametrize(
    ("question", "name", "values"),
    [
        ('Get the stock of "bolts"', "get_stock", ["bolts"]),
        ("Get the stock of thing bolts", "get_stock", []),
        ("STOCKINGS for Ann", "get_stock", ["Ann"]),
        ("Multiplied by Ann", "multiply", ["Ann"]),
        ("Add it for Ann", "add", []),
        ("The id of Ann", "get_id", []),
        ("weather in Oslo, Bergen and 'new york'", "get_weather", ["new york"]),
        ("weather in Oslo, Bergen and Rome", "get_weather", ["Oslo", "Bergen", "Rome"]),
    ],
)
def test_contract_model_matches_tools_by_word_prefix_and_values(question, name, values):
    assert [(name, {"thing": value}) for value in values] == chosen(question, **{name: ONE_TEXT})


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"n": NUMBER, "a": TEXT, "b": TEXT}}, {"n": 6, "a": "Ann", "b": "Ben"}),
        ({"properties": {"n": NUMBER, "a": TEXT}, "required": ["a", "n"]}, {"a": "Ann", "n": 6}),
        ({"properties": {"n": NUMBER, "m": NUMBER}, "required": ["n", "m"]}, {"n": 6, "m": -1.5}),
        ({"properties": {"n": NUMBER, "m": NUMBER, "o": NUMBER}}, None),
        ({"properties": {"yes": {"type": "boolean"}}}, None),
        ({"properties": {"n": {"type": ["integer", "null"]}}, "required": ["n"]}, None),
        ({"properties": {"n": NUMBER}, "required": []}, None),
    ],
)
def test_required_parameters_take_successive_numbers_or_words(schema, arguments):
    question = "Measure v2 and 1.2.3, 6 and -1.5, for Ann and Ben"
    assert ([] if arguments is None else [("measure", arguments)]) == chosen(question, measure=schema)


def test_used_value_is_not_used_for_the_next_tool():
    assert [("sell_bolts", {"n": 1, "m": 2}), ("count_bolts", {"n": 3})] == chosen(
        "bolts: 1, 2, 3",
        sell_bolts={"properties": {"n": NUMBER, "m": NUMBER}},
        count_bolts={"properties": {"n": NUMBER}},
    )


def test_contract_model_marks_every_answer_as_scripted():
    contract = render_contract(TOOLS)
    for question in ("Multiply 2 by 3", "Sing", "The weather"):
        assert ask(question, contract=contract).startswith("(scripted model)")
    assert ContractModel()({"messages": []}).startswith("(scripted model)")


def test_without_a_contract_it_calls_nothing():
    assert () == parse(ask("Multiply 2 by 3", contract="You are helpful.")).tool_calls


FENCES = "before\n```python\nx\n```\nafter"


@pytest.mark.parametrize(
    ("result", "words"),
    [(json.dumps({"product": 42, "note": "exact"}), "product 42, note exact"), (FENCES, FENCES)],
    ids=["values", "text with fences"],
)
def test_contract_model_answers_with_the_results(result, words):
    call = {"id": "call_1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 6, "b": 7}'}}
    messages = flatten_messages(
        [
            {"role": "user", "content": "Multiply 6 by 7"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result},
        ]
    )
    contract = {"role": "system", "content": render_contract(TOOLS)}
    assert f"(scripted model) The tools say: {words}." == ContractModel()({"messages": [contract, *messages]})
