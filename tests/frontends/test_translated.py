"""What a request asks for beside its text and tools: passed on where chat completions have it, otherwise said or refused by name."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from aiohttp import web
from tests.server.proxy_rig import running_upstream

from frontends.protocols import Written
from frontends.test_requests import decode
from patchbay.errors import InvalidRequestError
from patchbay.frontends import OpenAIResponses, anthropic, gemini, responses_request
from patchbay.models.wire import encode
from patchbay.proxy import create_app
from patchbay.testing import ScriptedUpstream
from support.http_server import ask, serving

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MESSAGES = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi."}]}
RESPONSES = {"model": "m", "input": "Hi."}
GEMINI = {"contents": [{"role": "user", "parts": [{"text": "Hi."}]}]}
PATHS = {"messages": "/v1/messages", "input": "/v1/responses", "contents": "/v1beta/models/m:generateContent"}
TOOLS = {
    "messages": {"tools": [{"name": "weather", "input_schema": SCHEMA}]},
    "responses": {"tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}]},
    "gemini": {"tools": [{"functionDeclarations": [{"name": "weather", "parametersJsonSchema": SCHEMA}]}]},
}
GOOGLES_FILE = "https://generativelanguage.googleapis.com/v1beta/files/abc"
CODE = {"type": "code_interpreter"}
PICTURE = "data:image/png;base64,AA=="


def path_of(body: dict[str, Any]) -> str:
    return next(path for name, path in PATHS.items() if name in body)


def user(*blocks: Any) -> dict[str, Any]:
    return {**MESSAGES, "messages": [{"role": "user", "content": list(blocks)}]}


def config(**fields: Any) -> dict[str, Any]:
    return {**GEMINI, "generationConfig": fields}


# effort, verbosity, service tier


@pytest.mark.parametrize(
    ("request_", "effort"),
    [
        ({**RESPONSES, "reasoning": {"effort": "xhigh", "summary": "auto"}}, "xhigh"),
        ({**RESPONSES, "reasoning": {"summary": "auto"}}, None),
        ({**MESSAGES, "output_config": {"effort": "medium"}, "thinking": {"type": "adaptive"}}, "medium"),
        ({**MESSAGES, "output_config": {"effort": "max"}}, "xhigh"),
        ({**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 1024}}, "low"),
        ({**MESSAGES, "thinking": {"type": "enabled", "budget_tokens": 31999}}, "high"),
        ({**MESSAGES, "thinking": {"type": "disabled"}}, "none"),
        ({**MESSAGES, "thinking": {"type": "adaptive"}}, None),
        (config(thinkingConfig={"thinkingLevel": "HIGH"}), "high"),
        (config(thinkingConfig={"thinkingBudget": 4096}), "medium"),
        (config(thinkingConfig={"thinkingBudget": 0}), "none"),
        (config(thinkingConfig={"thinkingBudget": -1}), None),
    ],
)
def test_the_effort_is_passed_on(request_, effort):
    assert effort == decode(request_).get("reasoning_effort")


ASKED = {
    **RESPONSES,
    "reasoning": {"effort": "high", "summary": "auto"},
    "text": {"verbosity": "low"},
    "service_tier": "flex",
    "truncation": "auto",
    "max_tool_calls": 3,
}


def upstream_of(refusal: Any, **answered: Any):
    """A server that answers "Fine."; ``refusal(body)`` is the status and the message of an error, or None. Yields its requests, too."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(body := json.loads(await request.read()))
        if (refused := refusal(body)) is not None:
            return web.json_response({"error": {"message": refused[1], "type": "invalid_request_error"}}, status=refused[0])
        return web.json_response(json.loads(Written("Fine.").whole()) | answered)

    return running_upstream(answer), asked


def unless_known(*known: str):
    """Refuse parameters that are not known."""

    def refusal(body: Any) -> tuple[int, str] | None:
        found = [name for name in ("reasoning_effort", "verbosity", "service_tier") if name in body and name not in known]
        return (400, f"Unrecognized request argument supplied: {found[0]}") if found else None

    return refusal


def of_pictures(message: str):
    """Refuse pictures."""
    return lambda body: (400, message) if "image_url" in json.dumps(body) else None


def test_a_response_says_what_was_done():
    upstream, asked = upstream_of(unless_known("reasoning_effort", "verbosity", "service_tier"), service_tier="priority")
    with upstream as server, serving(create_app(server.url)) as port:
        response = ask(port, "POST", "/v1/responses", {**ASKED, "presence_penalty": 0.5}).json
    assert ("high", "low", "flex") == tuple(asked[0][name] for name in ("reasoning_effort", "verbosity", "service_tier"))
    assert ("high", "low") == (response["reasoning"]["effort"], response["text"]["verbosity"])
    assert (0.5, 0.5) == (asked[0]["presence_penalty"], response["presence_penalty"])
    assert response["max_tool_calls"] is None
    assert ("priority", "disabled", 1) == (response["service_tier"], response["truncation"], len(asked))


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_server_refuses_by_name_is_left_out_from_then_on_and_the_response_says_so(stream):
    upstream, asked = upstream_of(unless_known("service_tier"))
    with (
        upstream as server,
        serving(create_app(server.url)) as port,
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k") as client,
    ):
        for _ in range(2):
            made: Any = client.responses.create(**ASKED, stream=stream)
            response = list(made)[-1].response if stream else made
            assert (None, None) == (response.reasoning.effort, response.text.verbosity)
            assert ("auto", "default", "Fine.") == (response.reasoning.summary, response.service_tier, response.output_text)
    assert [True, False, False, False] == ["reasoning_effort" in body for body in asked]
    assert [True, True, False, False] == ["verbosity" in body for body in asked]


@pytest.mark.parametrize(
    "message",
    [
        """invalid reasoning value: 'xhigh' (must be "high", "medium", "low", "max", or "none")""",
        '"m" does not support thinking',
        "`reasoning_effort` must be one of `none` or `default`",
        "[{'type': 'literal_error', 'loc': ('body', 'reasoning_effort'), 'msg': 'Input should be low'}]",
    ],
)
def test_a_server_that_refuses_an_effort_is_asked_without_it(message):
    upstream, asked = upstream_of(lambda body: (400, message) if "reasoning_effort" in body else None)
    with upstream as server, serving(create_app(server.url)) as port:
        assert 200 == ask(port, "POST", "/v1/messages", {**MESSAGES, "output_config": {"effort": "max"}}).status
    assert ["xhigh", None] == [body.get("reasoning_effort") for body in asked]


def test_a_chat_client_learns_that_its_own_parameter_was_refused():
    upstream, asked = upstream_of(unless_known())
    tools = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
    body = {"model": "m", "messages": MESSAGES["messages"], "tools": tools, "reasoning_effort": "low"}
    with upstream as server, serving(create_app(server.url, tools="native")) as port:
        assert 400 == ask(port, "POST", "/v1/chat/completions", body).status
    assert 1 == len(asked)


# tool_choice


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({**MESSAGES, "tool_choice": {"type": "any"}}, "tool_choice"),
        ({**MESSAGES, "tool_choice": {"type": "tool", "name": "weather"}}, "tool_choice"),
        ({**MESSAGES, **TOOLS["messages"], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({**RESPONSES, "tool_choice": "required"}, "tool_choice"),
        ({**RESPONSES, **TOOLS["responses"], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({**RESPONSES, **TOOLS["responses"], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({**GEMINI, "toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "tool_choice"),
        ({"model": "m", "messages": MESSAGES["messages"], "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_tool_choice_that_cannot_be_met_is_refused(request_, param):
    path = "/v1/chat/completions" if request_.keys() == {"model", "messages", "tool_choice"} else path_of(request_)
    with ScriptedUpstream(["Words."]) as upstream, serving(create_app(upstream.url)) as port:
        answer = ask(port, "POST", path, request_)
    assert (400, []) == (answer.status, upstream.requests)
    assert param in json.dumps(answer.json)


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_parameters_of_tools_are_left_out_without_tools(choice):
    with ScriptedUpstream(["Words."]) as upstream, serving(create_app(upstream.url)) as port:
        body = {**RESPONSES, "parallel_tool_calls": True, "tool_choice": choice}
        assert 200 == ask(port, "POST", "/v1/responses", body).status
    assert upstream.requests[0].json.keys().isdisjoint({"parallel_tool_calls", "tool_choice", "tools"})


# refused by name


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({**MESSAGES, "mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "mcp_servers"),
        (user({"type": "image", "source": {"type": "file", "file_id": "file_1"}}), "file"),
        (user({"type": "document", "source": {"type": "file", "file_id": "file_1"}}), "file"),
        ({**RESPONSES, "input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "file_id"),
        ({**RESPONSES, "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "file_id"),
        ({**GEMINI, "cachedContent": "cachedContents/x"}, "cachedContent"),
        ({**RESPONSES, "tools": [{"type": "mcp", "server_label": "x", "server_url": "https://x"}]}, "mcp"),
        ({**GEMINI, "tools": [{"mcpServers": [{"name": "x"}]}]}, "mcpServers"),
        ({"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": "gs://b/i.png"}}]}]}, "fileUri"),
        ({"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": GOOGLES_FILE}}]}]}, "fileUri"),
        ({**RESPONSES, "tools": [*TOOLS["responses"]["tools"], CODE], "tool_choice": CODE}, "'code_interpreter'"),
        (config(responseMimeType="text/x.enum", responseSchema={"type": "STRING", "enum": ["a"]}), "text/x.enum"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(request_, named):
    with pytest.raises(InvalidRequestError, match=named):
        decode(request_)


WEB = {"type": "web_search"}
HOSTED_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CHOSEN = {"type": "tool", "name": "web_search"}
HOSTED = [
    ({**MESSAGES, "tools": [HOSTED_SEARCH]}, "web_search_20250305"),
    ({**MESSAGES, "tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, "web_fetch_20250910"),
    ({**RESPONSES, "tools": [{"type": "web_search"}]}, "web_search"),
    ({**MESSAGES, "tools": [*TOOLS["messages"]["tools"], HOSTED_SEARCH], "tool_choice": CHOSEN}, "web_search_20250305"),
    ({**RESPONSES, "tools": [*TOOLS["responses"]["tools"], WEB], "tool_choice": WEB}, "web_search"),
    ({**GEMINI, "tools": [{"googleSearch": {}}]}, "googleSearch"),
    ({**GEMINI, "tools": [{"urlContext": {}}]}, "urlContext"),
]


@pytest.mark.parametrize(("request_", "named"), HOSTED)
def test_a_model_does_not_invent_what_a_hosted_search_finds(request_, named, omitted):
    with ScriptedUpstream(["Invented."]) as upstream, serving(create_app(upstream.url)) as port:
        answer = ask(port, "POST", path_of(request_), request_)
    assert (400, [], []) == (answer.status, upstream.requests, omitted)
    assert all(word in json.dumps(answer.json) for word in (named, "--web-search"))


@pytest.fixture
def omitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the front-ends log as left out."""
    found: list[str] = []
    for module in (anthropic, gemini, responses_request):
        monkeypatch.setattr(module, "_omit", found.append)
    return found


@pytest.mark.parametrize(
    ("protocol", "request_", "search", "named"),
    [
        ("responses", RESPONSES, {"type": "web_search"}, "'web_search'"),
        ("messages", MESSAGES, HOSTED_SEARCH, "'web_search_20250305'"),
        ("gemini", GEMINI, {"googleSearch": {}}, "googleSearch"),
    ],
)
def test_a_hosted_search_beside_other_tools_is_left_out_and_logged(protocol, request_, search, named, omitted):
    body = {**request_, "tools": [*TOOLS[protocol]["tools"], search]}
    with ScriptedUpstream(["Words."], tools="refuse") as upstream, serving(create_app(upstream.url)) as port:
        assert 200 == ask(port, "POST", path_of(body), body).status
    assert [f"the hosted tool {named}"] == omitted


# written for the model


DOCUMENT = {"type": "text", "media_type": "text/plain", "data": "It is blue."}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AA=="}
NESTED = {"type": "content", "content": [{"type": "text", "text": "Red."}]}
FILE = {"filename": "Note", "file_data": "data:application/pdf;base64,AA=="}
CONTENTS: dict[str, tuple[dict[str, Any], Any]] = {
    "document with title and context": (
        {"type": "document", "source": DOCUMENT, "title": "Note", "context": "By Ann."}, "Document: Note\n\nBy Ann.\n\nIt is blue."
    ),
    "document": ({"type": "document", "source": DOCUMENT}, "It is blue."),
    "nested document": ({"type": "document", "source": NESTED, "title": "Note"}, "Document: Note\n\nRed."),
    "context before a file": (
        {"type": "document", "source": PDF, "title": "Note", "context": "By Ann."},
        [{"type": "text", "text": "By Ann."}, {"type": "file", "file": FILE}],
    ),
    **{
        f"failed result {content!r}": ({"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": content}, text)
        for content, text in (("No file", "The tool failed: No file"), (None, "The tool failed."), ([], "The tool failed."))
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CONTENTS)
def test_what_a_block_says_is_written_for_the_model(case):
    block, content = CONTENTS[case]
    assert content == decode(user(block))["messages"][0]["content"]


def test_examples_and_schemas_are_translated():
    tool = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA, "input_examples": [{"city": "Rome"}]}
    (sent,) = decode({**MESSAGES, "tools": [tool]})["tools"]
    assert 'The weather.\nExamples of its input:\n{"city":"Rome"}' == sent["function"]["description"]
    format_ = decode(config(responseJsonSchema=SCHEMA))["response_format"]  # without a MIME type
    assert ("json_schema", SCHEMA) == (format_["type"], format_["json_schema"]["schema"])


SCHEMAS = [
    ({"type": "ARRAY", "minItems": "1", "maxItems": "3"}, {"type": "array", "minItems": 1, "maxItems": 3}),
    ({"type": "STRING", "min_length": "2"}, {"type": "string", "minLength": 2}),
    ({"anyOf": [{"type": "STRING"}], "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    ({"any_of": [{"type": "STRING"}]}, {"anyOf": [{"type": "string"}]}),
    ({"type": "STRING", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
]


@pytest.mark.parametrize(("given", "schema"), SCHEMAS)
def test_geminis_schemas_become_json_schemas(given, schema):
    declared = {"name": "f", "parameters": {"type": "OBJECT", "properties": {"x": given}}}
    (tool,) = decode({**GEMINI, "tools": [{"functionDeclarations": [declared]}]})["tools"]
    assert schema == tool["function"]["parameters"]["properties"]["x"]


# pictures


URL = {"type": "image", "source": {"type": "url", "url": "https://x/i.png"}}
PARTS = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": PICTURE}]
INLINE = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
SHOWN = {
    "messages": user({"type": "text", "text": "What is it?"}, URL),
    "responses": {**RESPONSES, "input": [{"role": "user", "content": PARTS}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "What is it?"}, INLINE]}]},
}


LEFT_OUT = "What is it?\n[A picture was left out: the model's server does not take it.]"


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("protocol", SHOWN)
def test_a_picture_does_not_end_a_session_on_a_server_that_takes_text_only(protocol, tools):
    body = {**SHOWN[protocol], **(TOOLS[protocol] if tools else {})}
    upstream, asked = upstream_of(of_pictures("m is not a multimodal model"))
    with upstream as server, serving(create_app(server.url, tools="native")) as port:
        for _ in range(2):
            assert "Fine." in ask(port, "POST", path_of(body), body).body.decode()
    assert 3 == len(asked)
    assert LEFT_OUT == asked[1]["messages"][-1]["content"] == asked[2]["messages"][-1]["content"]


def test_a_server_that_refuses_one_picture_is_not_taken_for_one_without_pictures():
    upstream, asked = upstream_of(of_pictures("Could not decode the image."))
    with upstream as server, serving(create_app(server.url)) as port:
        assert 400 == ask(port, "POST", "/v1/messages", SHOWN["messages"]).status
    assert 1 == len(asked)


# the log


def test_each_kind_of_omission_is_logged_once(caplog):
    caplog.set_level("INFO")
    for _ in range(2):
        OpenAIResponses().decode(encode({**RESPONSES, "tools": [{"type": "a_kind_of_its_own"}, {"type": "another_kind"}]}), "")
    records = [record for record in caplog.records if "left out of requests" in record.getMessage()]
    assert ["a_kind_of_its_own", "another_kind"] == [record.getMessage().split("'")[1] for record in records]
    assert all(record.is_bounded for record in records)  # so that no other lines can crowd them out
