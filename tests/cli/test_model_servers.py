"""``patchbay proxy`` without ``--upstream``, and servers whose upstream is dead: real servers at the ports that are tried."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from patchbay.doctor import model_servers
from patchbay.doctor.model_servers import KNOWN_SERVERS, FoundServer, choose_server, warning_of_upstream
from patchbay.errors import ConfigurationError
from support.cli import run_cli
from support.processes import listening

OLLAMA, LM_STUDIO, LLAMA_CPP, VLLM = KNOWN_SERVERS


@contextlib.contextmanager
def answering(answers: dict[str, Any], *, status: int = 200) -> Iterator[int]:
    """Serve JSON by path, 404 elsewhere; ``status`` is that of the list of models. Yields the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path in answers
            body = json.dumps(answers.get(self.path, {"error": "not found"})).encode()
            self.send_response((status if self.path == "/v1/models" else 200) if found else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def upstream_of(command: str, upstream: str) -> Iterator[Any]:
    """Run the proxy or the server of tools before an upstream."""
    flags = ["--store", "memory", "--mcp-config", "none"] if command == "serve" else []
    program = [sys.executable, "-m", "patchbay", command, "--port", "0", "--upstream", upstream, *flags]
    with listening(program, name=command) as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def models(*owners: str) -> dict[str, Any]:
    return {"/v1/models": {"object": "list", "data": [{"id": str(n), "owned_by": owner} for n, owner in enumerate(owners)]}}


ANSWERS = (
    (OLLAMA, {**models("bartowski"), "/api/version": {"version": "0.30"}}, 200, "Ollama, 1 model"),
    (OLLAMA, {"/v1/models": {"data": None}, "/api/version": {"version": "0.30"}}, 200, "Ollama, 0 models"),
    (LM_STUDIO, models("organization_owner", "organization_owner"), 200, "LM Studio, 2 models"),
    (LLAMA_CPP, models("llamacpp"), 200, "llama.cpp, 1 model"),
    (LLAMA_CPP, models("vllm"), 200, "vLLM, 1 model"),
    (LLAMA_CPP, models("someone"), 200, "a server with OpenAI's API, 1 model"),
    (VLLM, {"/v1/models": {"error": "Unauthorized"}, "/version": {"version": "0.20"}}, 401, "vLLM, needs a key"),
    (VLLM, {"/v1/models": {"error": "Unauthorized"}}, 401, None),
    (VLLM, {"/v1/models": ["another", "program"]}, 200, None),
    (VLLM, {}, 200, None),
)


@pytest.mark.parametrize(("known", "answers", "status", "expected"), ANSWERS)
def test_a_model_server_is_known_by_its_own_answers(known, answers, status, expected, monkeypatch: pytest.MonkeyPatch):
    with answering(answers, status=status) as port:
        monkeypatch.setattr(model_servers, "KNOWN_SERVERS", tuple(replace(each, port=free_port()) for each in KNOWN_SERVERS))
        found = [replace(each, port=port) if each.name == known.name else each for each in model_servers.KNOWN_SERVERS]
        monkeypatch.setattr(model_servers, "KNOWN_SERVERS", tuple(found))
        if expected is None:
            with pytest.raises(ConfigurationError, match="no model server was found"):
                choose_server()
        else:
            (server,) = choose_server()
            assert (expected, f"http://127.0.0.1:{port}/v1") == (str(server), server.url)


def test_a_server_that_never_answers_is_left_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_servers, "_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, answering(models("vllm")) as port:
        known = (replace(OLLAMA, port=silent.getsockname()[1]), replace(VLLM, port=port))
        monkeypatch.setattr(model_servers, "KNOWN_SERVERS", known)
        assert [FoundServer("vLLM", f"http://127.0.0.1:{port}/v1", 1)] == choose_server()


def test_proxy_without_an_upstream_uses_the_first_server_that_runs_and_names_the_others(tmp_path):
    with answering(models("llamacpp")) as first, answering(models("vllm", "vllm")) as second:
        ports = [free_port(), free_port(), first, second]
        script = tmp_path / "proxy.py"
        script.write_text(
            "from dataclasses import replace\n"
            "from patchbay.cli import main\n"
            "from patchbay.doctor import model_servers\n"
            f"known = zip(model_servers.KNOWN_SERVERS, {ports})\n"
            "model_servers.KNOWN_SERVERS = tuple(replace(each, port=port) for each, port in known)\n"
            "main(['proxy', '--port', '0'])\n"
        )
        with (
            listening([sys.executable, str(script)], name="patchbay proxy") as proxy,
            urllib.request.urlopen(f"{proxy.url}/models", timeout=60) as answer,
        ):
            assert ["llamacpp"] == [each["owned_by"] for each in json.load(answer)["data"]]
    assert [
        f"patchbay proxy listening on {proxy.url}",
        f"  upstream http://127.0.0.1:{first}/v1 (llama.cpp, 1 model)",
        f"  also found vLLM, 2 models: --upstream http://127.0.0.1:{second}/v1",
    ] == "".join(proxy.printed).splitlines()[:3]


def test_without_any_server_the_error_lists_what_was_tried_and_how_to_start_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_servers, "KNOWN_SERVERS", tuple(replace(each, port=free_port()) for each in KNOWN_SERVERS))
    for flags in ([], ["--upstream="]):
        done = run_cli("proxy", *flags)
        assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
        for each in model_servers.KNOWN_SERVERS:
            assert f"{each.name} (port {each.port}; start: {each.start})" in done.stderr
        assert "--upstream is missing" in done.stderr


@pytest.mark.parametrize("command", ["proxy", "serve"])
def test_a_dead_upstream_is_reported_at_start_and_used_once_it_runs(command: str):
    port = free_port()
    upstream = f"http://127.0.0.1:{port}/v1"
    with upstream_of(command, upstream) as server:
        base = server.url.removesuffix("/v1")
        with ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler) as late:
            thread = threading.Thread(target=late.handle_request)
            thread.start()
            with pytest.raises(urllib.error.HTTPError) as answered:
                urllib.request.urlopen(f"{base}/v1/models", timeout=60)
            thread.join()
            assert 501 == answered.value.code  # the late server's own answer
            answered.value.close()
    assert f"the upstream {upstream} cannot be reached (Connection refused): requests fail until it can" in "".join(
        server.printed
    )


@pytest.mark.parametrize("command", ["proxy", "serve"])
def test_an_upstream_whose_api_is_below_v1_is_reported_at_start_with_the_url_to_use(command: str):
    with answering(models("library")) as port:
        upstream = f"http://127.0.0.1:{port}"
        with upstream_of(command, f"{upstream}/") as server:
            pass
    assert f"the upstream {upstream} has no /models, but {upstream}/v1 has: use {upstream}/v1 as --upstream" in "".join(
        server.printed
    )


@pytest.mark.parametrize(
    ("answers", "status", "warned"),
    [
        (models("vllm"), 200, True),
        (models("vllm"), 401, True),
        (models("vllm"), 500, False),
        ({**models("llamacpp"), "/models": {}}, 200, False),
        ({}, 200, False),
    ],
)
def test_only_an_upstream_without_models_of_its_own_is_warned_of(answers, status: int, warned: bool):
    with answering(answers, status=status) as port:
        assert warned == bool(warning_of_upstream(f"http://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("flags", "warned"),
    [
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--token-file", "TOKEN"], True),
        (["--host", "0.0.0.0", "--token-file", "TOKEN", "--proxy", "10.0.0.1"], False),
        ([], False),
    ],
)
def test_serve_on_all_addresses_says_that_other_machines_are_refused(flags: list[str], warned: bool, tmp_path):
    token = tmp_path / "token"
    token.write_text("a-token-of-this-server")
    token.chmod(0o600)
    command = [sys.executable, "-m", "patchbay", "serve", "--port", "0", "--store", "memory", "--mcp-config", "none"]
    with listening([*command, *(str(token) if flag == "TOKEN" else flag for flag in flags)], name="patchbay serve") as server:
        pass
    assert warned == ("their requests are refused: --proxy ADDRESS --token-file FILE" in "".join(server.printed))
