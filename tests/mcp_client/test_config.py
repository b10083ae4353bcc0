"""The settings of MCP servers: the format of other clients, variables, filters, and the file that commands change."""

from __future__ import annotations

import json

import pytest

from patchbay.errors import ConfigurationError
from patchbay.mcp import McpServer, parse_servers, read_servers
from support.cli import run_cli

FOREIGN = {
    "files": {"command": "npx", "args": ["-y", "server", "${ROOT:-/srv}"], "env": {"TOKEN": "${TOKEN}"}},
    "web": {
        "type": "streamable-http",
        "url": "https://x.example/mcp",
        "headers": {"Authorization": "Bearer ${env:TOKEN}"},
        "oauth": {"clientId": "ours", "clientSecret": "${TOKEN}"},
    },
    "old": {"type": "sse", "url": "https://x.example/sse", "timeout": 5000, "alwaysAllow": ["a"]},
}


def test_the_format_of_other_clients_is_read_and_written_back():
    servers = parse_servers(FOREIGN)
    assert [("files", "stdio", 60.0), ("web", "http", 60.0), ("old", "sse", 5.0)] == [
        (each.name, each.transport, each.timeout) for each in servers
    ]
    assert servers == parse_servers({each.name: each.to_json() for each in servers})


def test_variables_are_read_when_a_server_is_connected():
    files, web, _ = parse_servers(FOREIGN)
    assert ("-y", "server", "/srv") == files.expanded({"TOKEN": "t"}).args
    assert {"Authorization": "Bearer t"} == web.expanded({"TOKEN": "t"}).headers
    assert ("ours", "t") == (web.expanded({"TOKEN": "t"}).client_id, web.expanded({"TOKEN": "t"}).client_secret)
    with pytest.raises(ConfigurationError, match="'files' needs the environment variable TOKEN: set it"):
        files.expanded({})


def test_a_process_gets_its_own_variables_and_few_of_ours(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    environment = McpServer(name="a", command="b", env={"MINE": "1"}).environment()
    assert ("1", None, True) == (environment.get("MINE"), environment.get("OPENAI_API_KEY"), "PATH" in environment)


def test_server_description_has_no_secrets():
    server = McpServer(name="a", url="https://ann:pass@x.example/mcp?key=pass", headers={"K": "pass"})
    assert "https://x.example/mcp" == server.address
    assert "pass" not in repr(McpServer(name="a", command="b", args=("pass",), env={"K": "pass"}))


@pytest.mark.parametrize(
    ("allow", "deny", "offered"),
    [(None, (), ["read_a", "write_a"]), (("read_*",), (), ["read_a"]), (None, ("*_a",), []), (("*",), ("write_*",), ["read_a"])],
)
def test_tools_are_filtered_by_patterns(allow, deny, offered):
    server = McpServer(name="a", command="b", allow=allow, deny=deny)
    assert offered == [name for name in ("read_a", "write_a") if server.offers(name)]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({}, "needs either a command or a url"),
        ({"command": "a", "url": "http://x"}, "needs either a command or a url"),
        ({"url": "nonsense"}, "must begin with http:// or https://"),
        ({"command": "a", "type": "http"}, "does not go with its address"),
        ({"command": "a", "type": "carrier-pigeon"}, "mcpServers.x.type must be one of stdio, http"),
        ({"command": "a", "args": "b"}, "mcpServers.x.args must be a list of strings"),
        ({"command": "a", "env": {"N": 1}}, "mcpServers.x.env.N must be a string"),
    ],
)
def test_a_mistake_names_its_place(entry, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_servers({"x": entry})


def run(*arguments, config):
    return run_cli("mcp", *arguments[:1], "--mcp-config", str(config), *arguments[1:])


def test_list_shows_the_commands_without_secrets(tmp_path):
    config = tmp_path / "mcp.json"
    secrets = ("--api-key", "abcdef-1", "--token=abcdef-2", "postgres://ann:abcdef-3@db/x", "SECRET=${SECRET}")
    assert 0 == run("add", "all", "--", "npx", "two words", *secrets, config=config).returncode
    (line,) = run("list", config=config).stdout.splitlines()
    assert "all  npx 'two words' --api-key [redacted] --token=[redacted] [redacted] 'SECRET=${SECRET}'" == line


def test_commands_edit_servers_and_keep_the_rest_of_the_file(tmp_path):
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"theme": "dark"}))
    assert (
        0 == run("add", "files", "--env", "A=${HOME}", "--deny", "write_*", "--", "npx", "-y", "server", config=config).returncode
    )
    assert 0 == run("add", "web", "https://x.example/mcp", "--header", "K=V", "--role", "ann", config=config).returncode
    twice = run("add", "web", "https://y.example/mcp", config=config)
    assert (2, True) == (twice.returncode, "there is an MCP server 'web'" in twice.stderr)
    wrong = run("add", "wrong", "htps://x.example/mcp", config=config)
    assert (2, True) == (wrong.returncode, "is neither a command nor a URL that" in wrong.stderr)
    files, web = read_servers(config)
    assert (("npx", ("-y", "server"), {"A": "${HOME}"}, ("write_*",)), ("https://x.example/mcp", {"K": "V"}, ("ann",))) == (
        (files.command, files.args, files.env, files.deny),
        (web.url, web.headers, web.roles),
    )
    assert ["files  npx -y server", "web    https://x.example/mcp; for ann"] == run("list", config=config).stdout.splitlines()
    assert 0 == run("remove", "files", config=config).returncode
    assert {"theme": "dark", "mcpServers": {"web": web.to_json()}} == json.loads(config.read_text())
    assert 0o600 == config.stat().st_mode & 0o777


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('["x"]', "the configuration must be an object, not a list"),
        ('{"mcpServers": {"a": {"command": "x", "args": "y"}}}', "mcpServers.a.args must be a list of strings"),
        (
            '{"servers": {"a": {"command": "x"}}}',
            "it has 'servers', and 'mcpServers' is expected: rename it, or patchbay mcp import",
        ),
    ],
)
def test_commands_name_the_file_of_a_mistake_and_its_place_once(tmp_path, content, message):
    config = tmp_path / "mcp.json"
    config.write_text(content)
    result = run("list", config=config)
    assert (2, 1) == (result.returncode, len(result.stderr.splitlines()))
    assert result.stderr.startswith(f"patchbay: {config}: {message}")


@pytest.mark.parametrize("given", ["Authorization=Bearer a:b==", "Authorization: Bearer a:b==", "Authorization:Bearer a:b=="])
def test_header_is_accepted_as_a_pair_or_in_other_clients_syntax(given, tmp_path):
    config = tmp_path / "mcp.json"
    assert 0 == run("add", "web", "https://x.example/mcp", "--header", given, config=config).returncode
    assert {"Authorization": "Bearer a:b=="} == read_servers(config)[0].headers
