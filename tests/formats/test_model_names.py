"""A model's name gives a format hint only if its words are known; ambiguous and unknown names give none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchbay.formats import FORMATS
from patchbay.formats.model_names import KNOWN, format_of


def test_every_row_names_a_catalog_format() -> None:
    assert [] == sorted({known.format for known in KNOWN if known.format is not None and known.format not in FORMATS})


def test_no_row_is_hidden_by_another() -> None:
    for known in KNOWN:
        for name in known.names:
            found = format_of(name.replace(" ... ", " some ").replace(".x", ".1"))
            assert known.format == (found.format if found else None), name


@pytest.mark.parametrize(
    ("expected", "names"),
    [
        ("hermes", ["qwen2.5-coder:7b-instruct-q4_K_M", "Qwen/Qwen2.5-7B-Instruct", "qwen2p5-72b", "qwen/qwen-2.5-72b-instruct"]),
        ("hermes", ["qwen3:8b", "Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-vl:8b", "someone/qwen3-abliterated:8b"]),
        (
            "qwen3_coder",
            ["qwen3-coder:30b", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "example.com/maker/Qwen3-Coder-Next-GGUF:Q4_K_M"],
        ),
        ("qwen3_coder", ["/models/Qwen3-Coder-30B-A3B-Instruct-Q4_K_M-00001-of-00002.gguf", "C:\\m\\Qwen3.5-4B.Q8_0.gguf"]),
        (
            "hermes",
            ["models--Qwen--Qwen3-8B/snapshots/1a2b3c", "/models/qwen3-8b/model.gguf", "/m/Qwen3-8B/ggml-model-q4_0.gguf"],
        ),
        ("hermes", ["NousResearch/Hermes-3-Llama-3.1-8B", "NousResearch/Hermes-2-Pro-Mistral-7B", "llama3-groq-tool-use:8b"]),
        ("deepseek_v3_json", ["deepseek-r1:8b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek/deepseek-chat-v3-0324"]),
        (
            "deepseek_v31",
            ["deepseek-ai/DeepSeek-V3.1-Terminus", "accounts/x/models/deepseek-v3p1", "deepseek/deepseek-chat-v3.1"],
        ),
        (
            "llama3_json",
            ["llama3.1:8b", "llama3.2", "meta-llama/Llama-3.3-70B-Instruct", "accounts/x/models/llama-v3p1-8b-instruct"],
        ),
        ("nemotron_v2", ["nvidia/NVIDIA-Nemotron-Nano-9B-v2", "Llama-3_3-Nemotron-Super-49B-v1_5"]),
        ("xlam", ["Salesforce/Llama-xLAM-2-8b-fc-r"]),
        ("mistral_json", ["mistral-nemo", "mistralai/Mistral-7B-Instruct-v0.3"]),
        ("mistral_args", ["mistral-small3.2:24b", "mistralai/Devstral-Small-2507", "ministral-3:8b"]),
        ("harmony", ["gpt-oss:20b", "openai/gpt-oss-120b"]),
        ("glm45", ["glm-4.6:cloud", "zai-org/GLM-4.5-Air", "accounts/x/models/glm-4p5"]),
        ("cohere_command", ["command-r7b", "CohereLabs/c4ai-command-a-03-2025"]),
        ("command_r_plus", ["command-r-plus", "command-r:35b"]),
        ("lfm2", ["LiquidAI/LFM2-8B-A1B", "lfm2.5-thinking"]),
    ],
)
def test_models_are_known_by_their_common_names(expected: str, names: list[str]) -> None:
    assert [expected] * len(names) == [hint.format if (hint := format_of(name)) else None for name in names]


@pytest.mark.parametrize(
    "name",
    [
        "", "/", "model.gguf", "my-model", "gpt-4o", "llama3:8b", "mistral", "gemma:7b",
        "Qwen/Qwen3-Embedding-8B", "Qwen/Qwen3-Reranker-4B", "Qwen/Qwen3-8B-Base", "meta-llama/Llama-Guard-3-8B",
        "maker/Dolphin3.0-Llama3.1-8B", "NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO", "phi4-mini-reasoning",
        "Llama-3.1-8B-Qwen2.5-merge", "/models/llama3.1/my-finetune.gguf", "Qwen/my-finetune",
    ],
)  # fmt: skip
def test_unknown_model_name_gives_no_format(name: str) -> None:
    assert None is format_of(name)


@pytest.mark.parametrize(
    ("reasons", "prefilled", "name"),
    [
        (False, False, "qwen2.5:7b"),
        (True, False, "qwen3:8b"),
        (True, True, "Qwen/Qwen3-4B-Thinking-2507"),
        (False, False, "Qwen/Qwen3-4B-Instruct-2507"),
        (True, True, "Qwen/Qwen3.5-4B"),
        (None, None, "deepseek-v3.1:671b"),
        (True, True, "deepseek-r1:8b"),
        (True, False, "kimi-k2-thinking"),
        (False, False, "ibm-granite/granite-3.1-8b-instruct"),
        (None, None, "ibm-granite/granite-3.3-8b-instruct"),
    ],
)
def test_model_hint_has_reasoning_and_prefill(reasons: bool | None, prefilled: bool | None, name: str) -> None:
    hint = format_of(name)
    assert hint is not None
    assert (reasons, prefilled) == (hint.reasons, hint.reasoning_prefilled)


def test_model_hint_has_its_reason_and_model_families() -> None:
    hint = format_of("Qwen/Qwen2.5-7B-Instruct")
    assert hint is not None
    assert "'Qwen2.5-7B-Instruct' has the words of 'qwen 2.5'" == hint.why
    assert FORMATS["hermes"].families == hint.families


@given(st.text())
def test_no_name_makes_it_fail(name: str) -> None:
    format_of(name)
