"""What ``/openapi.json`` says is what the server does: schemathesis asks what the description allows, and what it does not.

Of its checks these stay out: ``ignored_auth`` and ``object_level_authorization`` (the token is optional, and there are no objects with
owners behind paths), ``use_after_free``, ``ensure_resource_availability`` and ``missing_required_header`` (no path names a thing,
and no header is required).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from patchbay.server.app import ToolsApp, create_tools_app
from patchbay.server.callbacks import read_callback_url
from patchbay.server.governance import Governance, GovernanceSettings
from patchbay.server.settings import ToolsSettings
from support.repeated import examples, repeated, sampled
from tools_server.rig import TOKEN, Server, calling_back, json_response, serving


def with_audit(**settings: Any) -> ToolsApp:
    """A tool server that has all of its routes."""
    governance = Governance(GovernanceSettings(audit="sqlite://"))
    return create_tools_app(("ann", "ben"), settings=ToolsSettings(lease=0.0, **settings), governance=governance)


DESCRIBED: dict[str, Any] = with_audit().api.openapi()
SCHEMAS = DESCRIBED["components"]["schemas"]
CALLBACK_URL = SCHEMAS["RegisterBody"]["properties"]["callback_url"]
ASKED = set[str]()
"""The paths that this run asks, a third of them."""
OPERATIONS = (
    schemathesis.pytest.from_fixture("described")
    .include(lambda context: context.operation.path in ASKED)
    .exclude(path_regex="/events$")  # those answers do not end
)
OURS = "a tool that the test owns"
ORIGIN = re.compile(r"^https?://[^/?#]+")


@pytest.fixture
def described(request: pytest.FixtureRequest) -> Any:
    """The description as schemathesis reads it; its cases are made when the test runs, not in each worker's collection."""
    request.node._nodeid = request.node.nodeid  # schemathesis reads this name, which pytest has no more
    ASKED.update(sampled(DESCRIBED["paths"], len(DESCRIBED["paths"]) // 3))
    return schemathesis.openapi.from_dict(DESCRIBED)


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[Server, str]]:
    """A server, and the URL that a tool of its answers at. It calls no other port."""
    with (
        calling_back(json_response("done")) as callback,
        serving(app=with_audit(callback_ports=frozenset({callback.port}))) as server,
    ):
        server.register(OURS, callback.url, secret="kept")
        yield server, callback.url


def redirected_to_itself(case: Case, callback_url: str) -> None:
    """Have a URL that may be called lead to our own port, and every second call to our own tool. All else is left as it is."""
    body = case.body
    if not isinstance(body, dict):
        return
    url, name = body.get("callback_url"), body.get("name")
    if isinstance(url, str) and fits(url, CALLBACK_URL):
        body["callback_url"] = ORIGIN.sub(ORIGIN.match(callback_url)[0], url)
    if case.path.endswith("/call") and isinstance(name, str) and len(name) % 2:
        body["name"] = OURS


def rejects_invalid_data(ctx: Any, response: Any, case: Case) -> bool | None:
    """The same as ``negative_data_rejection``, but the contract takes numbers that are written as text or as truth values."""
    if isinstance(case.body, dict) and isinstance(seconds := case.body.get("timeout_seconds"), bool | str):
        try:
            fits = 0 < float(seconds) <= 300 and math.isfinite(float(seconds))
        except ValueError:
            fits = False
        if fits:
            return None
    return negative_data_rejection(ctx, response, case)


def has_only_documented_keys(_ctx: Any, response: Any, case: Case) -> bool | None:
    """Every key of an answer is described, also where a schema would let others pass."""
    described = DESCRIBED["paths"][case.path][case.operation.method].get("responses", {}).get(str(response.status_code), {})
    schema = described.get("content", {}).get("application/json", {}).get("schema")
    if schema is not None and case.method.lower() == case.operation.method:
        assert [] == list(undescribed(response.json(), schema, "")), response.text
    return None


def undescribed(value: Any, schema: dict[str, Any], place: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = SCHEMAS[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        ways = [list(undescribed(value, each, place)) for each in schema["anyOf"] if fits(value, each)]
        yield from min(ways, key=len)
    elif isinstance(value, dict) and "properties" in schema:
        yield from (f"{place}/{key}" for key in value.keys() - schema["properties"].keys())
        for key in value.keys() & schema["properties"].keys():
            yield from undescribed(value[key], schema["properties"][key], f"{place}/{key}")
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for key, each in value.items():
            yield from undescribed(each, schema["additionalProperties"], f"{place}/{key}")
    elif isinstance(value, list) and "items" in schema:
        for each in value:
            yield from undescribed(each, schema["items"], place)


@cache
def validator(schema: str) -> Any:
    return jsonschema_rs.validator_for({**json.loads(schema), "components": {"schemas": SCHEMAS}})


def fits(value: Any, schema: dict[str, Any]) -> bool:
    return bool(validator(json.dumps(schema)).is_valid(value))


@repeated(max_examples=min(examples(3), 50), suppress_health_check=[HealthCheck.too_slow])
@OPERATIONS.parametrize()
def test_every_request_is_answered_as_described(case: Case, asked: tuple[Server, str]) -> None:
    server, callback_url = asked
    redirected_to_itself(case, callback_url)
    # The guard asks for JSON before anybody looks at the path.
    headers = {"Content-Type": "application/json"} if case.method == "POST" != case.operation.method.upper() else None
    case.call_and_validate(
        base_url=f"http://127.0.0.1:{server.port}",
        headers=headers,
        timeout=10,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_headers_conformance,
            response_schema_conformance,
            positive_data_acceptance,
            rejects_invalid_data,
            unsupported_method,
            allow_header_conformance,
            has_only_documented_keys,
        ],
    )


def test_the_description_that_is_served_is_this_one(asked: tuple[Server, str]) -> None:
    assert DESCRIBED == asked[0].ask("GET", "/openapi.json").json


@pytest.mark.parametrize(
    ("status", "method", "path", "headers", "body"),
    [
        (400, "POST", "clear", {"host": "example.com"}, b"{}"),
        (401, "POST", "clear", {"authorization": "Bearer wrong"}, b"{}"),
        (403, "POST", "clear", {"origin": "https://example.com"}, b"{}"),
        (403, "POST", "clear", {"x_forwarded_for": "127.0.0.1"}, b"{}"),
        (404, "POST", "clear", {}, b'{"source": "s", "role": "nobody"}'),
        (413, "POST", "clear", {}, b" " * 2000),
        (422, "POST", "clear", {"content_type": "text/plain"}, b"{}"),
        (422, "POST", "clear", {}, b"{"),
        (422, "POST", "clear", {}, b'{"source": 5}'),
        (422, "POST", "register", {}, b'{"name": "a", "callback_url": "http://example.com/"}'),
        (400, "GET", "", {"host": "example.com"}, None),
        (401, "GET", "", {"authorization": "Bearer wrong"}, None),
        (403, "GET", "", {"origin": "https://example.com"}, None),
        (404, "GET", "?role=nobody", {}, None),
        (304, "GET", "", {"if_none_match": "*"}, None),
        (200, "GET", "", {}, None),
    ],
)
def test_every_refusal_has_the_keys_and_headers_that_are_described(
    status: int, method: str, path: str, headers: dict[str, str], body: bytes | None
) -> None:
    with serving(token=TOKEN, max_body_size=1000) as server:
        place = f"/api/tools/{path}" if method == "POST" else f"/api/tools{path}"
        answer = server.ask(method, place, raw=body, **headers)
    assert status == answer.status, answer.body
    described = DESCRIBED["paths"][place.partition("?")[0]][method.lower()]["responses"][str(status)]
    assert {name.lower() for name in described.get("headers", {})} <= answer.headers.keys()
    if answer.body:
        assert "application/json" == answer.headers["content-type"]
        schema = described["content"]["application/json"]["schema"]
        assert fits(answer.json, schema)
        assert [] == list(undescribed(answer.json, schema, ""))
    else:
        assert "content" not in described


def test_the_urls_that_the_description_allows_are_those_that_are_taken() -> None:
    taken = ["http://127.0.0.1:9876/tool_invoke", "https://localhost", "http://[::1]:1/a?b#c", "http://127.255.0.9:65535?x"]
    refused = [
        "", "ftp://127.0.0.1/", "http://", "http://example.com/", "http://0.0.0.0/", "http://127.1/", "http://127.0.0.256/",
        "http://127.0.0.01/", "http://localhost./", "http://a@127.0.0.1/", "http://127.0.0.1:0/", "http://127.0.0.1:65536/",
        "http://127.0.0.1:abc/", "http://127.0.0.1/a b", "http://127.0.0.1\\@example.com/", "http://127.0.0.1/\n",
    ]  # fmt: skip
    for url in taken:
        assert fits(url, CALLBACK_URL), url
        assert read_callback_url(url)
    for url in refused:
        assert not fits(url, CALLBACK_URL), url
