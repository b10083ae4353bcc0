"""Model servers with the habits of real ones: what is found of each, in full."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from doctor.scripted import MODEL, TEXTS, Habits, HabitualServer
from patchbay.doctor import Finding, examine
from patchbay.doctor.abilities import format_of
from patchbay.doctor.examination import PROBES
from patchbay.formats import StreamParser
from patchbay.server.settings import ProxySettings
from patchbay.testing import Raw, ScriptedUpstream

KEYWORDS = (
    "ok: Enforced by a constraint: values: type, enum, const; strings: minLength, maxLength, pattern, format date; integers: minimum; "
    "objects: required, additionalProperties; arrays: items, minItems, maxItems; combinations: anyOf, oneOf, allOf, $ref #/$defs/a. "
    "Checked after the answer: strings: format regex; integers: multipleOf; numbers: minimum, multipleOf; objects: minProperties, "
    "patternProperties, dependentRequired; arrays: uniqueItems, contains; combinations: not, if. Refused, so any object passes: "
    "combinations: $ref https://example.com/schema."
)
NATIVE = {
    "connection": "ok: URL answers HTTP 200 in N ms.",
    "certificate": "skipped: The server is on this machine, without TLS.",
    "api": "ok: It lists 1 model.",
    "clock": "ok: This machine's clock is that of the server, within a minute.",
    "server": "ok: It is a server with OpenAI's API, of no kind that is known here.",
    "model": "ok: The server lists the model tiny-model.",
    "chat": "ok: The model answers in N s.",
    "roles": "ok: It takes system and developer; the role tool is taken.",
    "tools": "ok: It calls tools natively, with tool_choice required and auto.",
    "parallel_tool_calls": "ok: parallel_tool_calls false is accepted, and one call came.",
    "format": "ok: With the tools in the prompt, by the fenced contract, it writes calls in the format fenced.",
    "json_schema": "ok: response_format json_schema is honoured.",
    "grammar": "ok: Grammars are ignored.",
    "structural_tag": "skipped: Structural tags are known of vLLM and SGLang.",
    "constraint": "ok: Native calls are the server's own: Patchbay adds no constraint, and checks their arguments.",
    "schema_keywords": KEYWORDS,
    "cached_tokens": "ok: Sent again, 887 of 888 tokens of a prompt come from the server's cache.",
    "context": "ok: The server does not say how long its context is; a prompt of 7,826 tokens is answered, with both codes at its ends "
    "repeated. -> Look further with --deep.",
    "speed": "ok: The first token comes after N s, then N tokens per second.",
    "calls": 'ok: Through Patchbay, a demanded call comes natively: get_weather {"city": "Paris"}.',
    "recommended": "ok: patchbay proxy --upstream URL --tools native -> Use it: the model calls tools natively.",
}
"""The findings of a server that does everything well. Each other server below differs from it in what its row says."""

UNUSABLE = "skipped: The server cannot be used yet."
ONLY_NATIVE = "skipped: Only native calls have it: of calls in text, Patchbay takes the first."
SPENT = (
    "note: The model spent 512 tokens before its answer, so this is not known. "
    "-> Turn its reasoning off at the server, and try again."
)
UNCONSTRAINED = (
    "note: Nothing constrains calls here: they are read, repaired and checked. -> llama.cpp, vLLM and SGLang take grammars."
)
FROM_TEXT = 'ok: Through Patchbay, a demanded call comes from the model\'s text: get_weather {"city": "Paris"}.'
UNDER_GRAMMAR = (
    'ok: Through Patchbay, a demanded call comes from the model\'s text under a grammar: get_weather {"city": "Paris"}.'
)
GRAMMAR_SENT = (
    "ok: With the tools in the prompt, Patchbay sends a grammar of the valid calls ({}): free text or calls with tool_choice auto, "
    "nothing but calls with required."
)
SCHEMA_WAY_OUT = " -> Nothing: Patchbay says the schema in the prompt where that is needed, checks the answer, and asks again."
IGNORED = {
    "tools": "note: Tools are silently ignored: 8 prompt tokens with tools, 8 without, and no call. "
    "-> Use --tools text: they are in the prompt then.",
    "parallel_tool_calls": ONLY_NATIVE,
    "constraint": UNCONSTRAINED,
    "calls": FROM_TEXT,
    "recommended": "ok: patchbay proxy --upstream URL --tools text "
    "-> Use it: tools are silently ignored, so they go into the prompt.",
}
SERVERS: dict[str, tuple[Habits, dict[str, str]]] = {
    "everything is native": (Habits(), {}),
    "tools are refused": (
        Habits(tools="refuse"),
        {
            **IGNORED,
            "tools": "note: Tools are refused: HTTP 400: tiny-model does not support tools "
            "-> Nothing: Patchbay puts them into the prompt (--tools text says so at once).",
            "recommended": "ok: patchbay proxy --upstream URL --tools text -> Use it: tools are refused, so they go into the prompt.",
        },
    ),
    "tools are ignored and the model writes the fenced format": (Habits(tools="ignore"), IGNORED),
    "tools are ignored and the model writes Hermes' format": (
        Habits(tools="ignore", text="hermes"),
        {
            **IGNORED,
            "format": "ok: With the tools in the prompt, by the fenced contract, it writes calls in the format hermes.",
            "recommended": "ok: patchbay proxy --upstream URL --tools text --format hermes "
            "-> Use it: tools are silently ignored, so they go into the prompt; it writes calls as hermes.",
        },
    ),
    "the model writes no call at all": (
        Habits(tools="ignore", text="none"),
        {
            **IGNORED,
            "format": "note: With the tools in the prompt, by the fenced contract, it wrote no call: It is sunny. "
            "-> Use a server that takes a grammar (calls are forced then), or a larger model.",
            "calls": "problem: Through Patchbay, a demanded call fails: The model did not call a tool although tool_choice demands it "
            "(asked 3 times). -> Use a larger model, or a server that takes a grammar (llama.cpp, vLLM, SGLang).",
            "recommended": "note: patchbay proxy --upstream URL --tools text "
            "-> Do not expect calls from this model: tools are silently ignored, so they go into the prompt.",
        },
    ),
    "no token is counted": (
        Habits(tools="ignore", counts=False),
        {
            **IGNORED,
            "tools": "note: The model wrote no native call, even where it was required (the server counts no tokens). "
            "-> Use --tools text, and compare: the model may not be made for its server's tools.",
            "cached_tokens": "note: Sent again, a prompt of unknown many tokens is reported without cached tokens (N s at first, N s "
            "again). -> Turn on the server's prefix cache, if it has one: every round of tools sends the conversation again.",
            "context": "ok: The server does not say how long its context is; a prompt of 7,600 tokens is answered, with both codes at "
            "its ends repeated. -> Look further with --deep.",
            "recommended": "ok: patchbay proxy --upstream URL --tools text -> Use it: no native call came, so tools go into the prompt.",
        },
    ),
    "the developer role is refused": (
        Habits(refused_roles=("developer",)),
        {
            "roles": "note: It takes system, not developer; the role tool is taken. -> Nothing: Patchbay sends instructions in roles "
            "that it takes, and with --tools text results as text of the user."
        },
    ),
    "the system and tool roles are refused": (
        Habits(refused_roles=("system", "developer", "tool")),
        {
            "roles": "note: It takes neither system nor developer; the role tool is refused. -> Nothing: Patchbay sends instructions "
            "in roles that it takes, and with --tools text results as text of the user."
        },
    ),
    "tool_choice and parallel_tool_calls are refused": (
        Habits(choice=False, parallel=False),
        {
            "tools": "note: It calls tools natively, with tool_choice required and auto; tool_choice required is refused. "
            "-> Nothing: Patchbay asks in words and again where a call is demanded.",
            "parallel_tool_calls": "note: parallel_tool_calls false is refused: HTTP 400: tool_choice is not supported "
            "-> Nothing: Patchbay takes the first call.",
        },
    ),
    "json_schema is refused": (
        Habits(schema="refused"),
        {
            "json_schema": "note: response_format json_schema is refused: HTTP 400: response_format json_schema is not supported"
            + SCHEMA_WAY_OUT
        },
    ),
    "json_schema is ignored": (
        Habits(schema="ignored"),
        {"json_schema": "note: response_format json_schema is ignored: Hello there." + SCHEMA_WAY_OUT},
    ),
    "a model reasons for longer than its answer may be": (
        Habits(thinks=True),
        {
            **dict.fromkeys(("format", "json_schema", "grammar"), SPENT),
            "context": "ok: The server does not say how long its context is; a prompt of 7,826 tokens is read whole.",
        },
    ),
    "llama.cpp with a template without tools": (
        Habits(tools="ignore", owner="llamacpp", grammar=True, rows=({"id": MODEL, "meta": {"n_params": 134_000_000}},)),
        {
            **IGNORED,
            "server": "ok: It is llama.cpp b11549.",
            "grammar": "ok: A grammar in the field grammar is honoured.",
            "constraint": GRAMMAR_SENT.format("grammar"),
            "context": "ok: The server says that its context has 8,192 tokens; a prompt of 7,826 tokens is answered, with both codes "
            "at its ends repeated.",
            "calls": UNDER_GRAMMAR,
            "recommended": "ok: patchbay proxy --upstream URL --tools text --copy-arguments -> Use it: tools are silently ignored, so "
            "they go into the prompt; the model is small: arguments are copied from the conversation.",
        },
    ),
    "vLLM without a tool parser": (
        Habits(tools="refuse", owner="vllm", grammar=True, tags=True, rows=({"id": MODEL, "max_model_len": 4096},)),
        {
            **IGNORED,
            "server": "ok: It is vLLM.",
            "tools": "note: Tools are refused: HTTP 400: tiny-model does not support tools "
            "-> Nothing: Patchbay puts them into the prompt (--tools text says so at once).",
            "grammar": "ok: A grammar in the field structured_outputs is honoured.",
            "structural_tag": "ok: Structural tags are honoured.",
            "constraint": GRAMMAR_SENT.format("structured_outputs"),
            "context": "ok: The server says that its context has 4,096 tokens; a prompt of 3,791 tokens is answered, with both codes "
            "at its ends repeated.",
            "calls": UNDER_GRAMMAR,
            "recommended": "ok: patchbay proxy --upstream URL --tools text -> Use it: tools are refused, so they go into the prompt.",
        },
    ),
    "SGLang that knows no structural tags": (
        Habits(owner="sglang", grammar=True),
        {
            "server": "ok: It is SGLang.",
            "grammar": "ok: A grammar in the field ebnf is honoured.",
            "structural_tag": "note: Structural tags are refused: HTTP 400: response_format structural_tag is unknown "
            "-> Nothing: Patchbay sends a grammar instead.",
        },
    ),
    "Ollama, whose short context cuts silently": (
        Habits(owner="library", context=2048, cached=False),
        {
            "server": "ok: It is Ollama.",
            "grammar": "skipped: Ollama takes no grammar, only a JSON Schema.",
            "cached_tokens": "note: Sent again, a prompt of 888 tokens is reported without cached tokens (N s at first, N s again). "
            "-> Turn on the server's prefix cache, if it has one: every round of tools sends the conversation again.",
            "context": "problem: The server does not say how long its context is; a prompt of 7,600 tokens is cut silently: 2,048 were "
            "read. -> Set OLLAMA_CONTEXT_LENGTH for the server, or num_ctx in the model's Modelfile.",
        },
    ),
    "a short context refuses": (
        Habits(context=2048, cuts=False),
        {
            "context": "note: The server does not say how long its context is; a prompt of 7,600 tokens is refused: HTTP 400: the "
            "request exceeds the available context size (2048 tokens) -> Raise the context length at the server, or keep "
            "conversations shorter."
        },
    ),
}
UNUSABLE_SERVERS: dict[str, tuple[Habits, dict[str, str]]] = {
    "the key is wrong": (
        Habits(key="right"),
        {
            "connection": "ok: URL answers HTTP 401 in N ms.",
            "certificate": NATIVE["certificate"],
            "api": "problem: The key is refused (HTTP 401: Incorrect API key provided: Bearer [redacted]). "
            "-> Set UPSTREAM_API_KEY (or --upstream-key) to a key of this server.",
        },
    ),
    "the model is not listed": (
        Habits(rows=({"id": "tiny-model-2"}, {"id": "qwen3:8b"})),
        {
            **{name: NATIVE[name] for name in ("connection", "certificate", "clock", "server")},
            "api": "ok: It lists 2 models.",
            "model": "problem: The server does not list the model tiny-model. -> Use --model with a listed name: tiny-model-2.",
        },
    ),
    "the model fails": (
        Habits(fails="the model could not be loaded"),
        {
            **{name: NATIVE[name] for name in ("connection", "certificate", "api", "clock", "server", "model")},
            "chat": "problem: A plain chat request fails: HTTP 400: the model could not be loaded "
            "-> Correct this first: nothing else can be examined (the server's log may say more).",
        },
    ),
    "the error of the model has control characters": (
        Habits(fails="\x1b[31mred\x1b[0m\nalert\x07"),
        {
            **{name: NATIVE[name] for name in ("connection", "certificate", "api", "clock", "server", "model")},
            "chat": "problem: A plain chat request fails: HTTP 400: \\x1b[31mred\\x1b[0m alert\\x07 "
            "-> Correct this first: nothing else can be examined (the server's log may say more).",
        },
    ),
    "the API is below another path": (
        Habits(base="/v1/v1"),
        {
            "connection": "ok: URL answers HTTP 404 in N ms.",
            "certificate": NATIVE["certificate"],
            "api": "note: There is no list of models (HTTP 404: Not Found). -> Name the model with --model.",
            **{name: NATIVE[name] for name in ("clock", "server")},
            "model": "skipped: There is no list to look in.",
            "chat": "problem: A plain chat request fails: HTTP 404: Not Found "
            "-> Correct this first: nothing else can be examined (the server's log may say more).",
        },
    ),
}


def described(finding: Finding, url: str) -> str:
    """A finding as one text, without what differs from run to run."""
    text = f"{finding.status}: {finding.seen}" + (f" -> {finding.advice}" if finding.advice else "")
    return re.sub(r"[\d.]+ (ms|s|tokens per second)\b", r"N \1", text.replace(url, "URL"))


async def findings(url: str, **options: Any) -> dict[str, str]:
    """What is found of a server, by the names of the probes."""
    settings = ProxySettings(url, upstream_key="wrong-key-0123456789")
    return {each.name: described(each, url) async for each in examine(settings, **{"model": MODEL, "timeout": 30.0, **options})}


@pytest.mark.parametrize("name", SERVERS)
async def test_of_a_usable_server_each_habit_is_found_and_the_flags_for_it(name: str) -> None:
    habits, differences = SERVERS[name]
    expected = {**NATIVE, **differences}
    expected["recommended"] = expected["recommended"].replace(": patchbay", ": UPSTREAM_API_KEY=… patchbay")
    with HabitualServer(habits) as server:
        assert expected == await findings(server.url)


@pytest.mark.parametrize("name", UNUSABLE_SERVERS)
async def test_of_an_unusable_server_the_first_problem_ends_the_examination(name: str) -> None:
    habits, known = UNUSABLE_SERVERS[name]
    with HabitualServer(habits) as server:
        assert {**dict.fromkeys(PROBES, UNUSABLE), **known} == await findings(server.url)


async def test_a_base_url_without_v1_is_a_problem_with_the_right_one_as_advice() -> None:
    with HabitualServer(Habits()) as server:
        found = await findings(server.url.removesuffix("/v1"))
    assert "problem: The API is not at this URL, but below /v1. -> Use --upstream URL/v1." == found["api"]
    assert UNUSABLE == found["recommended"]


async def test_a_server_that_cannot_be_reached_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    found = await findings(url)
    expected = (
        "problem: The upstream URL cannot be reached: Connection refused. -> Start the server, or correct --upstream; a firewall or a "
        "container's network may be between."
    )
    assert {**dict.fromkeys(PROBES, UNUSABLE), "connection": expected} == found


async def test_without_a_name_the_first_model_that_is_not_for_embeddings_is_examined() -> None:
    with HabitualServer(Habits(rows=({"id": "nomic-embed-text"}, {"id": MODEL}))) as server:
        found = await findings(server.url, model="")
    assert "ok: The model tiny-model is examined, the first of 2. -> Name another with --model." == found["model"]


async def test_a_model_that_never_answers_costs_one_timeout() -> None:
    with ScriptedUpstream(lambda _body: Raw(end="hang")) as server:
        found = await findings(server.url, model="scripted-model", timeout=0.5, limit=20)
    expected = "problem: No answer came in N s. -> Look at the server's load and log, or give it more time with --timeout."
    assert expected == found["chat"]
    assert UNUSABLE == found["roles"]


async def test_what_there_is_no_time_for_is_skipped() -> None:
    with HabitualServer(Habits()) as server:
        found = await findings(server.url, limit=0)
    expected = "skipped: The time for the whole examination is over. -> Give it more with --limit."
    assert dict.fromkeys(PROBES, expected) == found


async def test_more_than_20_requests_are_not_sent_to_a_server_that_does_everything() -> None:
    with HabitualServer(Habits()) as server:
        await findings(server.url)
        assert len(server.chats) <= 20


@contextmanager
def tls_server(certificate: trustme.LeafCert) -> Iterator[str]:
    """A server with TLS that answers 404; its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


async def test_a_certificate_of_an_unknown_authority_is_a_problem_and_one_that_ends_soon_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    ends = datetime.now(UTC) + timedelta(days=9, hours=12)
    with tls_server(authority.issue_cert("127.0.0.1", not_after=ends)) as url:
        unknown = (await findings(url))["connection"]
        authority.cert_pem.write_to_path(tmp_path / "authority.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        known = (await findings(url))["certificate"]
    assert unknown.startswith("problem: The upstream URL cannot be reached: ")
    assert unknown.endswith(" -> Renew the certificate, or set SSL_CERT_FILE to the authority that has signed it.")
    assert known.startswith("note: The certificate is trusted, and ends on ")
    assert known.endswith(", in 9 days. -> Renew it soon: requests fail afterwards.")


TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
FORMATS = {
    TEXTS["fenced"]: "fenced",
    TEXTS["hermes"]: "hermes",
    '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]': "mistral_json",
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>": "qwen3_coder",
    '```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```': "bare",
}


@pytest.mark.parametrize(("text", "expected"), FORMATS.items(), ids=FORMATS.values())
def test_the_format_of_a_call_is_found_in_the_text(text: str, expected: str) -> None:
    parser = StreamParser(TOOLS)
    parser.feed(text)
    parser.close()
    assert expected == format_of(text, parser.reply.tool_calls, "auto")
