"""The servers of other clients' configuration files."""

from __future__ import annotations

import json
import sys

import pytest

from patchbay.mcp.config import read_servers
from patchbay.mcp.other_clients import CLIENTS, import_servers
from support.cli import run_cli

CODEX = """
model = "gpt-5"

[mcp_servers.files]
command = "npx"
args = ["-y", "server"]
env_vars = ["LANG"]
startup_timeout_sec = 20
tool_timeout_sec = 90.5
enabled_tools = ["read_file"]
disabled_tools = ["write_file"]
[mcp_servers.files.env]
A = "1"

[mcp_servers.web]
url = "https://x.example/mcp"
bearer_token_env_var = "TOKEN"
enabled = false
http_headers = { "X-Region" = "eu" }
env_http_headers = { "X-Key" = "KEY" }
"""

VS_CODE = """{
  // asked once
  "inputs": [{"type": "promptString", "id": "api-key", "password": true}],
  "servers": {
    "files": {"type": "stdio", "command": "npx", "args": ["-y", "server", "http://x//y"], "env": {"KEY": "${input:api-key}"},},
    "web": {"type": "http", "url": "https://x.example/mcp" /* the new one */},
  },
}"""

FILES = {
    "claude-desktop": (".config/Claude/claude_desktop_config.json", {"mcpServers": {"files": {"command": "npx", "args": ["a"]}}}),
    "claude-code": (
        ".claude.json",
        {
            "mcpServers": {"files": {"type": "stdio", "command": "npx"}},
            "projects": {"PROJECT": {"mcpServers": {"more": {"type": "http", "url": "https://x.example"}}}},
        },
    ),
    "codex": (".codex/config.toml", CODEX),
    "cursor": (".cursor/mcp.json", {"mcpServers": {"files": {"command": "npx"}, "broken": {"args": ["a"]}}}),
    "vscode": (".config/Code/User/mcp.json", VS_CODE),
}


def found_in(client, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    place, content = FILES[client]
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content).replace("PROJECT", str(tmp_path / "project"))
    path.write_text(text)
    (found,) = import_servers(client, home=tmp_path, folder=tmp_path / "project")
    return {each.name: each for each in found.servers}, found.notes


NAMES = {
    "claude-desktop": ["files"],
    "claude-code": ["files", "more"],
    "codex": ["files", "web"],
    "cursor": ["files"],
    "vscode": ["files", "web"],
}


@pytest.mark.parametrize("client", CLIENTS)
def test_each_client_has_its_servers_found(client, tmp_path, monkeypatch):
    servers, notes = found_in(client, tmp_path, monkeypatch)
    assert (NAMES[client], client == "cursor") == (list(servers), len(notes) == 1)


def test_codex_server_settings_are_imported(tmp_path, monkeypatch):
    servers, _ = found_in("codex", tmp_path, monkeypatch)
    files, web = servers["files"], servers["web"]
    assert ({"LANG": "${LANG:-}", "A": "1"}, 20.0, 90.5) == (files.env, files.start_timeout, files.timeout)
    assert (["read_file"], True) == ([name for name in ("read_file", "write_file", "x") if files.offers(name)], web.disabled)
    assert {"X-Region": "eu", "X-Key": "${KEY}", "Authorization": "Bearer ${TOKEN}"} == web.headers


def test_vs_code_inputs_become_environment_variables(tmp_path, monkeypatch):
    files = found_in("vscode", tmp_path, monkeypatch)[0]["files"]
    assert ({"KEY": "${API_KEY}"}, "http://x//y") == (files.env, files.args[-1])


def test_import_command_adds_only_missing_servers(tmp_path):
    theirs, ours = tmp_path / "theirs.json", tmp_path / "mcp.json"
    theirs.write_text(json.dumps({"mcpServers": {"a": {"command": "new"}, "b": {"command": "new"}, "c": {}}}))
    ours.write_text(json.dumps({"mcpServers": {"a": {"command": "old"}}}))
    done = run_cli("mcp", "import", "cursor", "--from", str(theirs), "--mcp-config", str(ours))
    assert {"a": "old", "b": "new"} == {each.name: each.command for each in read_servers(ours)}
    assert ["a is left out", "c is left out"] == [line[:13] for line in done.stderr.splitlines()]
