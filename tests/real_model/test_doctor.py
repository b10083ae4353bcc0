"""``examine`` on llama.cpp: what it finds is what this server and this model do."""

from __future__ import annotations

import asyncio

import pytest

from patchbay.doctor import Finding, abilities, examine, measures
from patchbay.server.settings import ProxySettings

pytestmark = pytest.mark.timeout(900)


def test_what_is_found_of_llamacpp_and_a_small_model_is_right(llama: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Longer prompts and answers take minutes on a busy machine.
    monkeypatch.setattr(measures, "_MOST_PROMPT", 700)
    monkeypatch.setattr(measures, "_LINES", 12)
    monkeypatch.setattr(abilities, "MOST_TOKENS", 64)

    async def findings() -> dict[str, Finding]:
        settings = ProxySettings(f"{llama}/v1")
        return {each.name: each async for each in examine(settings, "small-135m", timeout=90.0, limit=800.0)}

    found = asyncio.run(findings())
    assert [] == [each for each in found.values() if each.status == "problem"]
    assert found["server"].seen.startswith("It is llama.cpp")
    assert found["model"].seen.endswith(", and answers for any name, such as small-135m.")
    assert "It takes system and developer; the role tool is taken." == found["roles"].seen
    assert found["tools"].seen.startswith("Tools are silently ignored: ")
    assert "response_format json_schema is honoured." == found["json_schema"].seen
    assert "A grammar in the field grammar is honoured." == found["grammar"].seen
    assert found["context"].seen.startswith("The server says that its context has 4,096 tokens; a prompt of ")
    assert found["cached_tokens"].seen.endswith(" tokens of a prompt come from the server's cache.")
    assert "from the model's text under a grammar" in found["calls"].seen
    assert f"patchbay proxy --upstream {llama}/v1 --tools text --copy-arguments" == found["recommended"].seen
