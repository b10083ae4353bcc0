"""The provider that a session's settings name, and its key."""

from __future__ import annotations

import pytest

from patchbay.errors import ConfigurationError
from patchbay.realtime import RealtimeSettings
from patchbay.realtime.providers.registry import PROVIDERS, dialect_for, key_for

VARIABLES = [variable for dialect in PROVIDERS for variable in dialect.key_variables]


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize(
    ("model", "settings", "provider", "name"),
    [
        ("openai/gpt-realtime", {}, "openai", "gpt-realtime"),
        ("gpt-realtime", {}, "openai", "gpt-realtime"),
        ("OpenAI/gpt-realtime", {}, "openai", "gpt-realtime"),
        ("qwen/qwen3-omni-flash-realtime", {}, "qwen", "qwen3-omni-flash-realtime"),
        ("dashscope/qwen3-omni-flash-realtime", {}, "qwen", "qwen3-omni-flash-realtime"),
        ("glm/glm-realtime", {}, "glm", "glm-realtime"),
        ("zhipu/glm-realtime", {}, "glm", "glm-realtime"),
        ("stepfun/step-audio-2", {}, "stepfun", "step-audio-2"),
        ("step/step-audio-2", {}, "stepfun", "step-audio-2"),
        ("gemini/gemini-live", {}, "gemini", "gemini-live"),
        ("google/models/gemini-live", {}, "gemini", "models/gemini-live"),
        ("glm-realtime", {"provider": "GLM"}, "glm", "glm-realtime"),
        ("glm/glm-realtime", {"provider": "glm"}, "glm", "glm-realtime"),
        ("team/own", {"provider": "openai"}, "openai", "team/own"),
        ("mine/voice", {"url": "ws://127.0.0.1:9"}, "openai", "mine/voice"),
        ("qwen/voice", {"url": "ws://127.0.0.1:9"}, "qwen", "voice"),
    ],
)
def test_provider_is_the_prefix_or_the_setting_and_else_openai(model, settings, provider, name):
    whole = RealtimeSettings(model=model, **settings)
    dialect = dialect_for(whole)
    assert (provider, name) == (dialect.provider, dialect(whole).model)


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_host_of_the_url_names_the_provider(dialect):
    assert dialect.hosts
    for host in dialect.hosts:
        name = f"my-space.region{host}" if host.startswith(".") else host
        assert (
            dialect.provider == dialect_for(RealtimeSettings(model="some-model", url=f"wss://{name.upper()}/any/path")).provider
        )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "acme/voice"}, "'acme'.*openai, gemini, glm, qwen, stepfun"),
        ({"model": "voice", "provider": "acme"}, "'acme'.*openai, gemini, glm, qwen, stepfun"),
        ({"model": "qwen/voice", "provider": "glm"}, "model of qwen, and provider is 'glm'"),
        ({"model": "qwen/voice", "url": "wss://api.openai.com/v1/realtime"}, "one of openai's.*one of qwen's"),
        ({"model": "voice", "provider": "glm", "url": "wss://api.stepfun.com/x"}, "one of stepfun's.*one of glm's"),
        ({"model": "qwen/"}, "use qwen/model"),
        ({"model": "qwen/ "}, "use qwen/model"),
        ({"model": "voice", "url": "ws://"}, "names no server"),
        ({"model": "voice", "url": "ws://[::1"}, "names no server"),
        ({"model": "voice", "url": "ws://host:0/"}, "names no server"),
        ({"model": "voice", "url": "ws://me:secret-1@host/"}, "no user"),
        ({"model": "voice", "url": "ws://host/#part"}, "no fragment"),
    ],
)
def test_invalid_provider_is_refused_with_the_way_out(settings, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        dialect_for(RealtimeSettings(**settings))
    assert "secret-1" not in str(caught.value)


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_the_key_is_the_first_that_the_environment_has(dialect, monkeypatch):
    settings = RealtimeSettings(model=f"{dialect.provider}/voice")
    for variable in reversed(dialect.key_variables):
        monkeypatch.setenv(variable, f"of-{variable}\n")
        assert f"of-{variable}" == key_for(settings)
    assert "given" == key_for(RealtimeSettings(model=f"{dialect.provider}/voice", api_key=" given "))


@pytest.mark.parametrize("dialect", PROVIDERS)
def test_missing_key_error_names_the_environment_variables(dialect):
    words = " or ".join(dialect.key_variables)
    with pytest.raises(ConfigurationError, match=f"no key for {dialect.provider}: set {words}, or give api_key"):
        key_for(RealtimeSettings(model=f"{dialect.provider}/voice"))
    with pytest.raises(ConfigurationError, match="no key"):
        key_for(RealtimeSettings(model="voice", url=f"wss://{dialect.hosts[0]}/x"))


@pytest.mark.parametrize(
    ("model", "url", "key"),
    [
        ("voice", "wss://elsewhere.example/rt", ""),
        ("qwen/voice", "ws://127.0.0.1:9/rt", ""),
        ("qwen/voice", "wss://dashscope.aliyuncs.com/rt", "of-qwen"),
        ("qwen/voice", "wss://llm-1.ap-southeast-1.maas.aliyuncs.com/rt", "of-qwen"),
        ("qwen/voice", "wss://maas.aliyuncs.com.elsewhere.example/rt", ""),
        ("qwen/voice", "wss://xmaas.aliyuncs.com/rt", ""),
        ("qwen/voice", "wss://aliyuncs.com/rt", ""),
        ("qwen/voice", "wss://maas.aliyuncs.com/rt", ""),
    ],
)
def test_only_the_providers_own_servers_get_a_key_from_the_environment(model, url, key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    monkeypatch.setenv("DASHSCOPE_API_KEY", "of-qwen")
    assert key == key_for(RealtimeSettings(model=model, url=url))
    assert "mine" == key_for(RealtimeSettings(model=model, url=url, api_key="mine"))


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "Schlüssel"])
def test_key_invalid_in_a_header_is_refused_and_not_shown(key, monkeypatch):
    with pytest.raises(ConfigurationError, match="api_key holds characters") as caught:
        key_for(RealtimeSettings(model="voice", api_key=key))
    assert key not in str(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY holds characters"):
        key_for(RealtimeSettings(model="voice"))
