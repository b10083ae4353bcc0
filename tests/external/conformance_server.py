"""The tools, prompts and resources that MCP's conformance suite asks a server for, on a tool server at a free port.

The tools are tools of the registry; those that ask the client use the SDK's context of their request. Prompts, resources and completions
are handlers of the SDK (``create_tools_app(extend_mcp=...)``). Run by tests/external/conformance.py; the URL is printed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import mcp_types as types
from mcp.server.subscriptions import PromptsListChanged
from mcp.shared.exceptions import MCPError

from patchbay import tool
from patchbay.server import ToolsSettings, create_tools_app
from patchbay.server.runtime import serve
from patchbay.server.settings import ServeOptions
from patchbay.tools.context import ToolContext
from patchbay.types import Attachment

IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
PICTURE = Attachment(base64.b64decode(IMAGE), "image/png")
TOOLS: list[Any] = []


def offered(function: Callable[..., Any], name: str = "", **options: Any) -> Callable[..., Any]:
    name = name or function.__name__
    TOOLS.append(tool(name=name, description=f"The suite's {name.replace('_', ' ')}.", **options)(function))
    return function


# Results


@offered
def test_simple_text() -> str:
    return "This is a simple text response for testing."


@offered
def test_image_content() -> Attachment:
    return PICTURE


@offered
def test_audio_content() -> Attachment:
    return Attachment(base64.b64decode(SOUND), "audio/wav")


@offered
def test_embedded_resource() -> Attachment:
    return Attachment(b"This is an embedded resource content.", "text/plain", "resource.txt")


@offered
def test_multiple_content_types() -> list[Any]:
    data = Attachment(b'{"test": "data", "value": 123}', "application/json", "data.json")
    return ["Multiple content types test:", PICTURE, data]


@offered
def test_error_handling() -> None:
    raise RuntimeError("This tool intentionally returns an error for testing")


@offered
async def test_tool_with_progress(tool_context: ToolContext) -> str:
    for step in (0, 50, 100):
        tool_context.progress(f"Completed step {step} of 100", fraction=step / 100)
        await asyncio.sleep(0.05)
    return "Done."


async def log_steps(tool_context: ToolContext) -> str:
    request = tool_context.invocation_context
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await request.session.send_log_message("info", line, related_request_id=request.request_id)
        await asyncio.sleep(0.05)
    return "Tool with logging executed successfully"


offered(log_steps, "test_tool_with_logging")
offered(log_steps, "test_logging_tool")


# Schemas: every keyword is passed on, and headers that repeat an argument are checked

ADDRESS = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def accept(_arguments: dict[str, Any]) -> str:
    return "These arguments match the schema."


offered(accept, "json_schema_2020_12_tool", parameters=SCHEMA)
REGION = {"type": "string", "x-mcp-header": "Region"}
offered(accept, "test_header_argument", parameters={"type": "object", "properties": {"region": REGION}, "required": ["region"]})


# Questions to the client in the handshake era: requests of the server


@offered
async def test_sampling(prompt: str, tool_context: ToolContext) -> str:
    request = tool_context.invocation_context
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    answer = await request.session.create_message([message], max_tokens=100, related_request_id=request.request_id)
    return f"LLM response: {answer.content.text}"


async def elicit(tool_context: ToolContext, message: str, properties: dict[str, Any]) -> str:
    request = tool_context.invocation_context
    schema = {"type": "object", "properties": properties, "required": []}
    answer = await request.session.elicit_form(message, schema, related_request_id=request.request_id)
    return f"action={answer.action}, content={json.dumps(answer.content or {})}"


@offered
async def test_elicitation(message: str, tool_context: ToolContext) -> str:
    return f"User response: {await elicit(tool_context, message, {'response': {'type': 'string', 'description': 'Response'}})}"


@offered
async def test_elicitation_sep1034_defaults(tool_context: ToolContext) -> str:
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    return f"Elicitation completed: {await elicit(tool_context, 'Please provide user information', fields)}"


@offered
async def test_elicitation_sep1330_enums(tool_context: ToolContext) -> str:
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{number}", "title": f"Option {number}"} for number in (1, 2, 3)]
    fields = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return f"Elicitation completed: {await elicit(tool_context, 'Please select', fields)}"


# Questions to the client in 2026: results that ask for input


def form(message: str, name: str, kind: str = "string") -> types.ElicitRequest:
    schema = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(text: str, tokens: int) -> types.CreateMessageRequest:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=text))
    return types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=tokens))


def asking(name: str, requests: dict[str, Any], state: str | None = None) -> None:
    """Offer a tool that asks for all of ``requests``, until it has the answers and its state."""

    def ask(tool_context: ToolContext) -> Any:
        params = tool_context.invocation_context.params
        answers = params.get("inputResponses") or {}
        if not requests.keys() <= answers.keys() or (state is not None and params.get("requestState") != state):
            return types.InputRequiredResult(input_requests=requests, request_state=state)
        return f"state-ok: {json.dumps({key: answers[key] for key in requests})}"

    offered(ask, name)


NAME = form("What is your name?", "name")
CONFIRM = {"confirm": form("Please confirm", "ok", "boolean")}
asking("test_input_required_result_elicitation", {"user_name": NAME})
asking("test_input_required_result_sampling", {"capital_question": sample("What is the capital of France?", 100)})
asking("test_input_required_result_list_roots", {"client_roots": types.ListRootsRequest()})
asking("test_input_required_result_request_state", CONFIRM, "asked")
asking("test_input_required_result_tampered_state", CONFIRM, "asked")
asking(
    "test_input_required_result_multiple_inputs",
    {"user_name": NAME, "greeting": sample("Generate a greeting", 50), "client_roots": types.ListRootsRequest()},
    "asked",
)
asking("test_streaming_elicitation", {"user_name": NAME})


@offered
def test_input_required_result_multi_round(tool_context: ToolContext) -> Any:
    params = tool_context.invocation_context.params
    answers, state = params.get("inputResponses") or {}, params.get("requestState")
    if state == "second" and "step2" in answers:
        return "Done."
    if state == "first" and "step1" in answers:
        question = form("Step 2: What is your favorite color?", "color")
        return types.InputRequiredResult(input_requests={"step2": question}, request_state="second")
    return types.InputRequiredResult(input_requests={"step1": form("Step 1: What is your name?", "name")}, request_state="first")


@offered
def test_input_required_result_capabilities(tool_context: ToolContext) -> Any:
    can = tool_context.invocation_context.session.client_capabilities
    requests: dict[str, Any] = {}
    if can.elicitation is not None:
        requests["user_name"] = NAME
    if can.sampling is not None:
        requests["greeting"] = sample("Generate a greeting", 50)
    return types.InputRequiredResult(input_requests=requests) if requests else "The client can be asked nothing."


@offered
def test_missing_capability(tool_context: ToolContext) -> str:
    if tool_context.invocation_context.session.client_capabilities.sampling is None:
        data = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs a client that can sample", data)
    return "The client can sample."


# Changes


@offered
def test_trigger_tool_change() -> str:
    app.managers["default"].register_tool(tool(name="test_added", description="A tool that came later.")(test_simple_text))
    return "The list of tools has changed."


@offered
async def test_trigger_prompt_change(tool_context: ToolContext) -> str:
    await tool_context.invocation_context.lifespan_context["subscriptions"].publish(PromptsListChanged())
    return "The list of prompts has changed."


# Prompts, resources, completions, the level of the log

PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
    "test_input_required_result_prompt": [],
}


async def list_prompts(_context: Any, _params: Any) -> types.ListPromptsResult:
    def described(name: str, arguments: list[str]) -> types.Prompt:
        about = f"The suite's {name.replace('_', ' ')}."
        return types.Prompt(
            name=name,
            description=about,
            arguments=[types.PromptArgument(name=each, description="Any text.", required=True) for each in arguments],
        )

    return types.ListPromptsResult(prompts=[described(name, arguments) for name, arguments in PROMPTS.items()])


async def get_prompt(_context: Any, params: types.GetPromptRequestParams) -> Any:
    given = params.arguments or {}
    if params.name == "test_input_required_result_prompt" and "user_context" not in (params.input_responses or {}):
        question = form("What context should the prompt use?", "context")
        return types.InputRequiredResult(input_requests={"user_context": question})
    if params.name not in PROMPTS or set(PROMPTS[params.name]) - given.keys():
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt, or an argument is missing: {params.name}")
    content: types.ContentBlock = types.TextContent(text=f"A prompt for testing: {json.dumps(given)}")
    if params.name == "test_prompt_with_image":
        content = types.ImageContent(data=IMAGE, mime_type="image/png")
    elif params.name == "test_prompt_with_embedded_resource":
        text = types.TextResourceContents(uri=given["resourceUri"], mime_type="text/plain", text="Embedded resource content.")
        content = types.EmbeddedResource(resource=text)
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=content)])


async def list_resources(_context: Any, _params: Any) -> types.ListResourcesResult:
    kinds = {"static-text": "text/plain", "static-binary": "image/png", "watched-resource": "text/plain"}
    found = [types.Resource(uri=f"test://{name}", name=name, mime_type=kind) for name, kind in kinds.items()]
    return types.ListResourcesResult(resources=found)


async def list_templates(_context: Any, _params: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(uri_template="test://template/{id}/data", name="template", mime_type="application/json")
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(_context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    uri = str(params.uri)
    content: types.TextResourceContents | types.BlobResourceContents
    if uri == "test://static-binary":
        content = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=IMAGE)
    elif uri in ("test://static-text", "test://watched-resource"):
        content = types.TextResourceContents(uri=uri, mime_type="text/plain", text="This is the content of the resource.")
    elif found := re.fullmatch(r"test://template/([^/]+)/data", uri):
        text = json.dumps({"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"})
        content = types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    return types.ReadResourceResult(contents=[content])


async def complete(_context: Any, _params: types.CompleteRequestParams) -> types.CompleteResult:
    return types.CompleteResult(completion=types.Completion(values=[], total=0, has_more=False))


async def acknowledge(_context: Any, _params: Any) -> types.EmptyResult:
    return types.EmptyResult()


def extend(server: Any) -> None:
    for method, params, handler in (
        ("prompts/list", types.PaginatedRequestParams, list_prompts),
        ("prompts/get", types.GetPromptRequestParams, get_prompt),
        ("resources/list", types.PaginatedRequestParams, list_resources),
        ("resources/templates/list", types.PaginatedRequestParams, list_templates),
        ("resources/read", types.ReadResourceRequestParams, read_resource),
        ("resources/subscribe", types.SubscribeRequestParams, acknowledge),
        ("resources/unsubscribe", types.UnsubscribeRequestParams, acknowledge),
        ("completion/complete", types.CompleteRequestParams, complete),
        ("logging/setLevel", types.SetLevelRequestParams, acknowledge),
    ):
        server.add_request_handler(method, params, handler)


app = create_tools_app(settings=ToolsSettings(lease=0.0), extend_mcp=extend)

if __name__ == "__main__":
    for each in TOOLS:
        app.managers["default"].register_tool(each)
    sys.exit(serve(lambda _worker: app, ServeOptions(port=0), ready=lambda url: print(url, flush=True)))
