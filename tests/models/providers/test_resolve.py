"""What a user may write for a model, where it leads, and which key goes there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import openai
import pytest

from patchbay.errors import ConfigurationError
from patchbay.models.chat_model import ChatModel
from patchbay.models.providers import PROVIDERS
from patchbay.models.resolve import HostedModel, resolve_model
from patchbay.testing import ScriptedModel, ScriptedUpstream
from support.scripted_server import SharedUpstream, json_body

from .chat_servers import ChatServer, calls
from .conftest import QUESTION, reply_of, run

GOOGLE = "https://generativelanguage.googleapis.com"


def hosted(model: Any, **options: Any) -> HostedModel:
    found = resolve_model(model, **options)
    assert isinstance(found, HostedModel)
    return found


@pytest.mark.parametrize(
    ("text", "provider", "name", "where"),
    [
        ("gpt-4o-mini", "openai", "gpt-4o-mini", "https://api.openai.com/v1"),
        ("ft:gpt-4o-mini:me::1", "openai", "ft:gpt-4o-mini:me::1", "https://api.openai.com/v1"),
        ("OpenAI/gpt-5", "openai", "gpt-5", "https://api.openai.com/v1"),
        ("gemini/gemini-3-pro", "gemini", "gemini-3-pro", GOOGLE),
        ("google/gemini-3-pro", "gemini", "gemini-3-pro", GOOGLE),
        ("zhipu/glm-4.6", "glm", "glm-4.6", "https://open.bigmodel.cn/api/paas/v4/"),
        ("qwen/qwen-plus", "qwen", "qwen-plus", "https://dashscope.aliyuncs.com/compatible-mode/v1"),
        ("stepfun/step-3.5-flash", "stepfun", "step-3.5-flash", "https://api.stepfun.com/v1"),
        ("openai/org/model", "openai", "org/model", "https://api.openai.com/v1"),
        ("http://127.0.0.1:11434/v1#qwen2.5:7b", "", "qwen2.5:7b", "http://127.0.0.1:11434/v1"),
        ("http://[::1]:8000/v1#Qwen/Qwen3-8B", "", "Qwen/Qwen3-8B", "http://[::1]:8000/v1"),
        ("http://127.0.0.1:8000/v1#a%20b", "", "a b", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8080/v1", "", None, "http://127.0.0.1:8080/v1"),
        ("https://api.z.ai/api/paas/v4#glm-4.6", "glm", "glm-4.6", "https://api.z.ai/api/paas/v4"),
        (f"{GOOGLE}/v1beta/openai#gemini-3-pro", "gemini-compatible", "gemini-3-pro", f"{GOOGLE}/v1beta/openai"),
    ],
)
def test_model_name_resolves_to_its_provider(text: str, provider: str, name: str | None, where: str) -> None:
    model = hosted(text, api_key="k")
    assert (provider, name) == (model.provider, model.name)
    assert repr(model).endswith(f"at {where}>")
    assert isinstance(model, ChatModel)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("meta-llama/Llama-3", "no provider 'meta-llama'.*openai, gemini, glm, qwen, stepfun.*#meta-llama/Llama-3"),
        ("qwen/", "qwen/model"),
        ("ftp://127.0.0.1/v1#x", "no URL of a server"),
        ("http:///v1#x", "no URL of a server"),
        ("http://me:secret@127.0.0.1/v1#x", "api_key"),
        ("http://127.0.0.1/v1?key=1#x", "no query"),
        ("http://[::1/v1#x", "no URL of a server"),
        ("http://127.0.0.1:99999/v1#x", "no URL of a server"),
        ("http://127.0.0.1:http/v1#x", "no URL of a server"),
    ],
)
def test_unresolvable_model_name_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        resolve_model(text, api_key="k")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8000/v1", "base_url .*no URL of a server"),
        ("ftp://127.0.0.1/v1", "base_url .*no URL of a server"),
        ("http://me:my-secret@127.0.0.1/v1", "base_url .*no user"),
        ("http://127.0.0.1/v1?key=my-secret", "base_url .*no query"),
        ("http://127.0.0.1/v1#m", "base_url .*openai/model"),
    ],
)
def test_base_url_is_validated_from_argument_and_environment(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        resolve_model("gpt-4o-mini", api_key="k", base_url=url)
    assert "my-secret" not in str(caught.value)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    with pytest.raises(ConfigurationError, match=message.replace("base_url", "OPENAI_BASE_URL")):
        resolve_model("gpt-4o-mini", api_key="k")


def test_secret_in_a_url_is_not_repeated() -> None:
    for text, options in (("htp://me:my-secret@127.0.0.1/v1", {}), ("http://me:my-secret@x/v1", {"base_url": "http://y/v1"})):
        with pytest.raises(ConfigurationError) as caught:
            resolve_model(text, **options)
        assert "my-secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["my-secret\nkey", "my-secret\u00e9", "my secret", "my-secret\x00"])
def test_unsendable_key_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="api_key") as caught:
        resolve_model("gpt-4o-mini", api_key=key)
    assert "secret" not in str(caught.value)
    if "\x00" not in key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(ConfigurationError, match="OPENAI_API_KEY") as caught:
            resolve_model("gpt-4o-mini")
        assert "secret" not in str(caught.value)


def test_line_end_after_a_key_is_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer(["a", "b"]) as server:
        model = hosted(f"{server.url}#m", api_key="k-1\n")
        run(model, reply_of(model, [QUESTION], tools=()))
        monkeypatch.setenv("DASHSCOPE_API_KEY", " k-2\n")
        model = hosted("qwen/m", base_url=server.url)
        run(model, reply_of(model, [QUESTION]))
    assert ["Bearer k-1", "Bearer k-2"] == [chat.headers["authorization"] for chat in server.chats[-2:]]
    monkeypatch.setenv("DASHSCOPE_API_KEY", " ")
    with pytest.raises(ConfigurationError, match="no key for qwen"):
        resolve_model("qwen/m")


@pytest.mark.parametrize(
    ("option", "value"),
    [("timeout", 0), ("timeout", -1), ("timeout", float("nan")), ("timeout", "5"), ("max_retries", -1), ("max_retries", 1.5)],
)
def test_unenforceable_limits_are_refused(option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=option):
        resolve_model("http://127.0.0.1/v1#m", **{option: value})


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda provider: provider.name)
def test_provider_without_a_key_names_its_variables(provider: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve_model(f"{provider.name}/m")
    for endpoint in provider.endpoints:
        assert endpoint.key_variable in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "where"), [("ZHIPUAI_API_KEY", "https://open.bigmodel.cn/"), ("ZAI_API_KEY", "https://api.z.ai/")]
)
def test_key_selects_its_endpoint(variable: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "k")
    assert where in repr(resolve_model("glm/glm-4.6"))


def test_environment_provides_url_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer(["a", "b"]) as server:
        monkeypatch.setenv("DASHSCOPE_BASE_URL", server.url)
        monkeypatch.setenv("DASHSCOPE_API_KEY", "from-the-environment")
        model = hosted("qwen/qwen-plus")
        run(model, reply_of(model, [QUESTION]))
        model = hosted("qwen/qwen-plus", api_key="given", headers={"X-Team": "a"})
        run(model, reply_of(model, [QUESTION]))
    assert ["Bearer from-the-environment", "Bearer given"] == [request.headers["authorization"] for request in server.requests]
    assert "a" == server.requests[1].headers["x-team"]


def test_a_key_of_the_environment_is_never_sent_to_a_server_that_was_only_named_by_its_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable in ("OPENAI_API_KEY", "DASHSCOPE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, "my-secret")
    with ChatServer(["a"]) as server:
        model = hosted(f"{server.url}#m")
        run(model, reply_of(model, [QUESTION], tools=()))
    assert not any("my-secret" in str(request.headers) for request in server.requests)


def test_single_model_of_a_server_is_the_default() -> None:
    with ScriptedUpstream(["Clear.", "Rain."], model="the-only-one") as server:
        model = hosted(server.url)

        async def both() -> None:
            for _ in range(2):
                await reply_of(model, [QUESTION], tools=())

        run(model, both())
    assert "the-only-one" == model.name
    assert ["/v1/models", "/v1/chat/completions", "/v1/chat/completions"] == [request.path for request in server.requests]
    assert "the-only-one" == server.chats[0].json["model"]


def test_server_with_several_models_requires_a_name() -> None:
    listed = {"object": "list", "data": [{"id": name, "object": "model", "created": 1, "owned_by": "x"} for name in ("a", "b")]}
    with SharedUpstream() as server:
        server.on("/v1/models", json_body(listed))
        model = hosted(server.url)
        with pytest.raises(ConfigurationError, match=rf"several models \(a, b\).*{server.url}#name"):
            run(model, reply_of(model, [QUESTION]))


def test_a_request_may_name_another_model_of_the_same_server() -> None:
    with ChatServer(["a"]) as server:
        model = hosted(f"{server.url}#one")
        run(model, reply_of(model, [QUESTION], tools=(), parameters={"model": "two"}))
    assert "two" == server.bodies[0]["model"]


def test_capabilities_are_kept_across_event_loops() -> None:
    written = '```tool_call\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'
    with ChatServer([written, written], tools="refuse") as server:
        model = hosted(f"{server.url}#m")
        for _ in range(2):
            assert 1 == len(run(model, reply_of(model, [QUESTION])).reply.tool_calls)
    assert [True, False, False] == ["tools" in body for body in server.bodies]


def test_chat_model_resolves_to_itself_and_takes_no_settings() -> None:
    model = ScriptedModel([])
    assert model is resolve_model(model)
    with pytest.raises(ConfigurationError, match="tools"):
        resolve_model(model, tool_mode="text")
    with pytest.raises(ConfigurationError, match="api_key"):
        resolve_model(model, api_key="k")


def test_client_resolves_to_a_model_with_its_own_connection() -> None:
    with ChatServer([calls(("get_weather", "{}"))]) as server:

        async def ask() -> Any:
            async with openai.AsyncOpenAI(base_url=server.url, api_key="k") as client:
                with pytest.raises(ConfigurationError, match="base_url"):
                    resolve_model(client, base_url="http://127.0.0.1:1")
                return await asyncio.wait_for(reply_of(resolve_model(client), [QUESTION], parameters={"model": "m"}), 60)

        assert ["get_weather"] == [call.name for call in asyncio.run(ask()).reply.tool_calls]


@pytest.mark.parametrize("model", [None, 3, object()])
def test_invalid_model_argument_is_a_type_error(model: Any) -> None:
    with pytest.raises(TypeError, match="URL"):
        resolve_model(model)


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="frobnicate"):
        resolve_model("gpt-4o-mini", api_key="k", frobnicate=True)
    with pytest.raises(ConfigurationError, match="tools is 'sometimes'"):
        resolve_model("gpt-4o-mini", api_key="k", tool_mode="sometimes")


def test_gemini_without_its_package_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai", None)
    monkeypatch.setitem(sys.modules, "google", None)
    model = hosted("gemini/gemini-3-pro", api_key="k")
    with pytest.raises(ConfigurationError, match=r"patchbay-tools\[gemini\]"):
        run(model, reply_of(model, [QUESTION]))


def test_naming_a_model_loads_no_vendors_package() -> None:
    program = (
        "import sys; from patchbay.models.resolve import resolve_model; resolve_model('gpt-4o-mini', api_key='k');"
        "resolve_model('gemini/x', api_key='k'); print([name for name in ('openai', 'google.genai', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "[]" == done.stdout.strip()
