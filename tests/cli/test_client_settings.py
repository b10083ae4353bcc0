"""``patchbay proxy --print-env``: what is printed points each client at the proxy. ``make clients`` runs the clients with it."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import yaml

from support.cli import run_cli

ORIGIN, ROOT, CHAT = "http://127.0.0.1:9000", "http://127.0.0.1:9000/llm", "http://127.0.0.1:9000/llm/v1"
FILES = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}


def printed(client: str) -> tuple[dict[str, str], str, object]:
    """The variables, the command and the file that ``--print-env`` shows."""
    done = run_cli("proxy", "--print-env", client, "--port", "9000", "--base-path", "/llm/v1", "--host", "0.0.0.0")
    assert (0, "") == (done.returncode, done.stderr)
    file = None
    if found := re.match(r"# ~/\S+\.(\w+)\n(.*)\n# in the shell\n", done.stdout, re.DOTALL):
        file = FILES[found[1]](found[2])
    shell = done.stdout[found.end() if found else 0 :].splitlines()
    exports = [line.removeprefix("export ") for line in shell if line.startswith("export ")]
    return dict(line.split("=", 1) for line in exports), " ".join(shell[len(exports) :]), file


@pytest.mark.parametrize(
    ("client", "variable", "url", "command"),
    [
        ("aider", "OPENAI_API_BASE", CHAT, "aider --model openai/MODEL"),
        ("claude", "ANTHROPIC_BASE_URL", ROOT, "claude --model MODEL"),
        ("gemini", "GOOGLE_GEMINI_BASE_URL", ORIGIN, "gemini --model MODEL"),
        ("mini-swe-agent", "OPENAI_API_BASE", CHAT, "mini --model openai/MODEL"),
        ("openai", "OPENAI_BASE_URL", CHAT, ""),
        ("qwen", "OPENAI_BASE_URL", CHAT, "qwen --auth-type openai"),
    ],
)
def test_a_variable_names_the_proxy(client: str, variable: str, url: str, command: str) -> None:
    variables, started, _ = printed(client)
    assert (url, command) == (variables[variable], started)
    assert "KEY" in variables.values()


def test_a_command_names_the_proxy() -> None:
    command = f"cline auth --provider openai --apikey KEY --modelid MODEL --baseurl {CHAT}"
    assert ({}, command, None) == printed("cline")


def test_a_file_names_the_proxy() -> None:
    _, codex, settings = printed("codex")
    assert ("codex", CHAT) == (codex, settings["model_providers"][settings["model_provider"]]["base_url"])
    _, opencode, settings = printed("opencode")
    provider, model = settings["model"].split("/")
    assert ("opencode", CHAT) == (opencode, settings["provider"][provider]["options"]["baseURL"])
    assert model in settings["provider"][provider]["models"]
    _, cn, settings = printed("continue")
    assert ("cn", CHAT, "MODEL") == (cn, settings["models"][0]["apiBase"], settings["models"][0]["model"])
    _, pi, settings = printed("pi")
    assert ("pi --provider patchbay --model MODEL", CHAT) == (pi, settings["providers"]["patchbay"]["baseUrl"])
    assert "gemini-api-key" == printed("gemini")[2]["security"]["auth"]["selectedType"]


@pytest.mark.parametrize(
    ("arguments", "why"), [(["emacs"], "mini-swe-agent"), (["claude", "--base-path", "/v9"], "must end in /v1, not /v9")]
)
def test_a_client_that_cannot_be_pointed_at_the_proxy_is_refused(arguments: list[str], why: str) -> None:
    done = run_cli("proxy", "--print-env", *arguments)
    assert 2 == done.returncode
    assert why in done.stderr
