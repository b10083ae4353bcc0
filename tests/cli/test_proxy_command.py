"""The flags of ``patchbay proxy``: mistakes are one line, before anything runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from patchbay.testing import ScriptedUpstream
from support.cli import run_cli
from support.processes import Process, listening, run_process

BOUND = 60.0
PROXY = [sys.executable, "-m", "patchbay", "proxy"]
UPSTREAM = "http://127.0.0.1:9/v1"


@pytest.fixture
def listener() -> Iterator[str]:
    """The URL of an upstream that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


def test_the_program_lists_its_commands_and_its_version() -> None:
    assert "proxy" in run_cli("-h").stdout
    assert re.fullmatch(r"patchbay \d+\.\d+\.\d+\n", run_cli("--version").stdout)
    nothing = run_cli()
    assert (2, "") == (nothing.returncode, nothing.stderr)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["proxy", "--upstream", UPSTREAM, "--nope"], "No such option: --nope"),
        (["proxy", "--upstream", UPSTREAM, "extra"], "unexpected extra argument"),
        (["proxy", "--upstream", "localhost:1"], "must begin with http:// or https://"),
        (["proxy", "--upstream", "ftp://host/v1"], "must begin with http:// or https://"),
        (["proxy", "--upstream", "http://host:99999/v1"], "99999"),
        (["proxy", "--upstream", "--port", "1234"], "1234"),
        (["proxy", "--upstream"], "requires an argument"),
        (["proxy", "--upstream", UPSTREAM, "--port", "abc"], "'--port'"),
        (["proxy", "--upstream", UPSTREAM, "--port=70000"], "'--port'"),
        (["proxy", "--upstream", UPSTREAM, "--api-key", ""], "api_key is empty"),
        (["proxy", "--upstream", UPSTREAM, "--api-key", "--cors"], "--api-key needs a key"),
        (["proxy", "--upstream", UPSTREAM, "--api-key"], "requires an argument"),
        (["proxy", "--upstream", UPSTREAM, "--cors=true"], "does not take a value"),
        (["proxy", "--upstream", UPSTREAM, "--max-body-size", "10zb"], "is not a size"),
        (["proxy", "--upstream", UPSTREAM, "--max-body-size", "NaN"], "is not a size"),
        (["proxy", "--upstream", UPSTREAM, "--max-log-size=-1"], "is not a size"),
        (["proxy", "--upstream", UPSTREAM, "--tag", "a b"], "a b"),
        (["proxy", "--upstream", UPSTREAM, "--base-path", "/a b"], "base path"),
        (["proxy", "--upstream", UPSTREAM, "--tools", "both"], "'auto', 'text', 'native'"),
        (["proxy", "--upstream", UPSTREAM, "--format", "nonsense"], "nonsense"),
        (["proxy", "--upstream", UPSTREAM, "--xml-tool", "bash"], "Invalid --xml-tool 'bash': use TAG=TOOL"),
        (["proxy", "--upstream", UPSTREAM, "--format", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["proxy", "--upstream", UPSTREAM, "--system-injection", "x"], "'merge', 'prepend'"),
        (["proxy", "--upstream", UPSTREAM, "--repair-rounds", "-1"], "'--repair-rounds'"),
        (["proxy", "--upstream", UPSTREAM, "--upstream-timeout", "soon"], "'--upstream-timeout'"),
        (["proxy", "--upstream", UPSTREAM, "--workers", "0"], "'--workers'"),
        (["proxy", "--upstream", UPSTREAM, "--host", "no.such.host.invalid"], "cannot listen on"),
        (["proxy", "--upstream", UPSTREAM, "--log-file", "/nowhere/log"], "log file"),
        (["proxy", "--upstream", "http://localhost:8787/v1"], "is this server itself"),
        (["poxy"], "No such command 'poxy'. Did you mean 'proxy'"),
    ],
)  # fmt: skip
def test_invalid_usage_is_a_one_line_error(flags: list[str], message: str) -> None:
    done = run_cli(*flags)
    assert (2, "") == (done.returncode, done.stdout)
    assert message in done.stderr
    assert 1 == done.stderr.count("\n")
    assert done.stderr.startswith("patchbay: ")


def test_a_key_in_the_url_of_the_upstream_is_not_repeated() -> None:
    for url in (f"{UPSTREAM}?key=secret", f"{UPSTREAM}#secret", UPSTREAM.replace("://", "://user:secret@")):
        done = run_cli("proxy", "--upstream", url)
        assert (2, False, True) == (done.returncode, "secret" in done.stderr, "must" in done.stderr)


def test_port_in_use_is_a_one_line_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for workers in ("1", "2"):
            done = run_cli("proxy", "--upstream", UPSTREAM, "--port", port, "--workers", workers)
            assert 2 == done.returncode
            assert f"patchbay: cannot listen on 127.0.0.1 port {port}: address already in use.\n" == done.stderr


def test_unopenable_store_is_a_one_line_error(tmp_path) -> None:
    command = [*PROXY, "--port", "0", "--upstream", UPSTREAM, "--store", f"sqlite:///{tmp_path}/none/x.db"]
    done = run_process(command, capture_output=True, text=True, timeout=BOUND)
    assert (2, 1, True) == (done.returncode, len(done.stderr.splitlines()), "there is no folder" in done.stderr)


def test_a_wrong_variable_is_named() -> None:
    done = run_cli("proxy", "--upstream", UPSTREAM, PORT="http")
    assert 2 == done.returncode
    assert "PORT" in done.stderr


def start(*flags: str, **environment: str) -> tuple[str, str, str]:
    """Start a proxy, read its two lines, stop it; returns both and what it said on stderr."""
    command, env = [*PROXY, "--port=0", *flags], {**os.environ, **environment}
    with Process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        lines = process.stdout.readline(), process.stdout.readline()
        process.terminate()
        _, stderr = process.communicate(timeout=BOUND)
        assert 0 == process.returncode, stderr
        return *lines, stderr


def test_proxy_prints_its_address_and_upstream_without_colours(listener: str) -> None:
    listening, behind, stderr = start("--upstream=" + listener + "/", "--base-path=v2")
    assert re.fullmatch(r"patchbay proxy listening on http://127\.0\.0\.1:\d+/v2\n", listening)
    assert f"  upstream {listener}\n" == behind
    assert "" == stderr


def test_every_setting_can_come_from_the_environment(listener: str) -> None:
    env = {
        "UPSTREAM_BASE_URL": listener, "PORT": "0", "HOST": "127.0.0.1", "PROXY_API_KEY": "a-key-of-this-test", "UPSTREAM_API_KEY": "",
        "PATCHBAY_BASE_PATH": "v3", "PATCHBAY_CORS": "1", "PATCHBAY_TOOLS": "text", "PATCHBAY_NO_REASONING": "true",
        "PATCHBAY_MAX_BODY_SIZE": "1mb", "PATCHBAY_WORKERS": "1",
    }  # fmt: skip
    listening, _, stderr = start(**env)
    assert listening.endswith("/v3\n")
    assert "" == stderr


@pytest.mark.parametrize(("size", "limit", "path"), [("1mb", 1_000_000, "v2"), ("1MiB", 1 << 20, "/a/b/")])
def test_size_units_and_base_paths_are_accepted_in_any_spelling(size: str, limit: int, path: str) -> None:
    def status(url: str, length: int, key: str) -> int:
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * length}]}
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=BOUND)
        with contextlib.closing(connection):
            connection.request("POST", urlsplit(url).path, json.dumps(body), headers)
            return connection.getresponse().status

    flags = [f"--max-body-size={size}", "--port=0"]
    with ScriptedUpstream(["Hello."]) as upstream:
        variables = {"UPSTREAM_BASE_URL": upstream.url, "PROXY_API_KEY": "a-key-of-this-test", "PATCHBAY_BASE_PATH": path}
        with listening([*PROXY, *flags], name="patchbay proxy", environment=variables) as child:
            base = child.url.removesuffix(path.strip("/"))
            statuses = [
                status(f"{base}{path.strip('/')}/chat/completions", limit - 5000, "a-key-of-this-test"),
                status(f"{base}{path.strip('/')}/chat/completions", limit + 1, "a-key-of-this-test"),
                status(f"{base}{path.strip('/')}/chat/completions", 1, "another"),
                status(f"{base}v1/chat/completions", 1, "a-key-of-this-test"),
            ]
    assert [200, 413, 401, 404] == statuses


def test_an_address_that_others_can_reach_without_a_key_is_warned_of(listener: str) -> None:
    first, _, stderr = start("--upstream", listener, "--host", "0.0.0.0")
    assert (True, True) == ("anyone there can use this proxy" in stderr, "on http://127.0.0.1:" in first)
    assert "" == start("--upstream", listener, "--host", "0.0.0.0", "--api-key", "a-key-of-this-test")[2]


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_proxy_listens_on_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback here")
    assert "http://[::1]:" in start("--upstream", UPSTREAM, "--host", "::1")[0]
