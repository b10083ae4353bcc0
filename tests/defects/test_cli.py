"""Defect 34: the command line says what is wrong before anything runs, in one line, and understands what people type."""

from __future__ import annotations

import socket
import subprocess
from urllib.parse import urlsplit

import pytest

from .doors import PATCHBAY, clean_environment, http_request, listens_at, running_proxy
from .reading import TOOLS
from .upstream import PATIENCE, Upstream

GOOD = ("--upstream", "http://127.0.0.1:9/v1")


def patchbay(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [str(PATCHBAY), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        env={**clean_environment(), "COLUMNS": "200", "NO_COLOR": "1", **environment},
        check=False,
    )


@pytest.mark.parametrize("arguments", [("-h",), ("proxy", "-h"), ("proxy", "--help")])
def test_d34_help_is_given(arguments: tuple[str, ...]) -> None:
    done = patchbay(*arguments)
    assert (0, "") == (done.returncode, done.stderr)
    assert "proxy" in done.stdout


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ((*GOOD, "--no-such-flag"), "--no-such-flag"),
        ((), "--upstream"),
        (("--upstream",), "--upstream"),
        (("--upstream", "--port", "1234"), "1234"),
        (("--upstream", "127.0.0.1:11434/v1"), "127.0.0.1:11434"),
        (("--upstream", "ftp://host/v1"), "ftp"),
        (("--upstream", "http://host:99999/v1"), "99999"),
        ((*GOOD, "--port", "x"), "port"),
        ((*GOOD, "--port", "70000"), "port"),
        ((*GOOD, "--max-body-size", "ten"), "ten"),
        ((*GOOD, "--max-body-size", "NaN"), "NaN"),
        ((*GOOD, "--api-key"), "--api-key"),
        ((*GOOD, "--api-key", "--cors"), "api-key"),
        ((*GOOD, "--format", "no-such-format"), "no-such-format"),
        ((*GOOD, "--tag", "a b"), "a b"),
        ((*GOOD, "--cors", "true"), "true"),
        ((*GOOD, "--log-file", "/no/such/folder/log.jsonl"), "/no/such/folder"),
    ],
    ids=lambda value: " ".join(value) or "(nothing)" if isinstance(value, tuple) else "",
)
def test_d34_a_mistake_is_one_clear_message_and_no_start(flags: tuple[str, ...], named: str) -> None:
    done = patchbay("proxy", *flags)
    assert done.returncode in (1, 2)
    assert named.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.strip().splitlines()) <= 10
    assert "" == done.stdout


def test_d34_a_port_in_use_is_said_without_a_stack_trace() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = patchbay("proxy", *GOOD, "--port", port)
    assert done.returncode in (1, 2)
    assert port in done.stderr
    assert "in use" in done.stderr.lower()
    assert "Traceback" not in done.stderr + done.stdout


def test_d34_flags_may_be_joined_with_an_equals_sign(upstream: Upstream) -> None:
    with running_proxy(f"--upstream={upstream.url}", "--tools=text", "--max-body-size=10mb") as proxy:
        assert 200 == http_request(proxy.port, "GET", "/health").status


@pytest.mark.parametrize(("size", "limit"), [("1mb", 1_000_000), ("1MiB", 1 << 20)])
def test_d34_a_size_with_a_unit_is_a_limit(upstream: Upstream, model: str, size: str, limit: int) -> None:
    upstream.on(model, "Hello.")
    with running_proxy("--upstream", upstream.url, "--tools", "text", "--max-body-size", size) as proxy:
        for length, status in ((limit - 5000, 200), (limit + 1, 413)):
            body = {"model": model, "messages": [{"role": "user", "content": "x" * length}], "tools": TOOLS[:1]}
            assert status == http_request(proxy.port, "POST", "/v1/chat/completions", body).status


@pytest.mark.parametrize("path", ["v2", "/a/b/"])
def test_d34_a_base_path_works_however_it_is_written(upstream: Upstream, model: str, path: str) -> None:
    upstream.on(model, "Hello.")
    with running_proxy("--upstream", upstream.url, "--tools", "text", "--base-path", path) as proxy:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
        target = "/" + path.strip("/") + "/chat/completions"
        assert 200 == http_request(proxy.port, "POST", target, body).status
        assert 404 == http_request(proxy.port, "POST", "/v1/chat/completions", body).status


def test_d34_the_environment_sets_what_flags_do_not(upstream: Upstream) -> None:
    environment = {**clean_environment(), "UPSTREAM_BASE_URL": upstream.url, "PORT": "0", "PROXY_API_KEY": "sk-proxy"}
    process = subprocess.Popen(
        [str(PATCHBAY), "proxy"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = urlsplit(listens_at(process.stdout.readline()))
        assert url.port not in (None, 8787)
        assert 401 == http_request(url.port, "GET", "/v1/models").status
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=PATIENCE)
    assert 0 == process.returncode, output
