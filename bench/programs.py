"""The programs that are measured as proxies, ours and the peers: how each is started. A further peer is one function and one row.

Every one listens on loopback, runs one worker, and is given the same scripted upstream. None asks its clients for a key.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import patchbay
from bench import install
from bench.places import UnavailableError

OURS = "patchbay"
TRACED = "patchbay --otel"
ORIGINAL = "llm-tool-proxy"
LITELLM = "LiteLLM"
NGINX = "nginx"


@dataclass(frozen=True)
class Place:
    """Where one instance of a program runs: the upstream it calls, the port it listens on, a folder for its files."""

    upstream_port: int
    port: int
    folder: Path

    @property
    def upstream(self) -> str:
        """The upstream's base URL, as every proxy wants it."""
        return f"http://127.0.0.1:{self.upstream_port}/v1"


@dataclass(frozen=True)
class Program:
    """One proxy. ``parses``: it turns the model's text into calls, so its answers must hold them. ``slow``: tens of times the rest."""

    name: str
    version: str
    command: Callable[[Place], list[str]]
    ready_path: str
    parses: bool
    slow: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


class Maker(Protocol):
    """What a row holds. ``allowed``: whether the program may be installed; raises UnavailableError with the reason."""

    def __call__(self, *, allowed: bool) -> Program: ...


def _patchbay(*, allowed: bool) -> Program:  # noqa: ARG001 - it is never installed from here
    script = Path(sys.executable).with_name("patchbay")
    if not script.exists():
        raise UnavailableError("patchbay is not installed in this environment")
    return Program(
        name=OURS,
        version=patchbay.__version__,
        command=lambda place: [
            *(str(script), "proxy", "--upstream", place.upstream, "--port", str(place.port)),
            *("--workers", "1", "--tools", "text"),
        ],
        ready_path="/health",
        parses=True,
    )


def _traced(*, allowed: bool) -> Program:
    plain = _patchbay(allowed=allowed)

    def command(place: Place) -> list[str]:  # the upstream also takes the spans
        return ["env", f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{place.upstream_port}", *plain.command(place), "--otel"]

    return replace(plain, name=TRACED, command=command)


def _llm_tool_proxy(*, allowed: bool) -> Program:
    package = install.node_peers(allowed=allowed) / "llm-tool-capability"
    return Program(
        name=ORIGINAL,
        version=json.loads((package / "package.json").read_text())["version"],
        command=lambda place: [
            *("node", str(package / "dist" / "cli.js")),
            *("--upstream", place.upstream, "--port", str(place.port)),
        ],
        ready_path="/health",
        parses=True,
    )


_LITELLM_CONFIG = """\
model_list:
  - model_name: scripted
    litellm_params:
      model: openai/scripted
      api_base: {upstream}
      api_key: none
"""


def _litellm(*, allowed: bool) -> Program:
    binaries = install.environment("litellm", allowed=allowed)

    def command(place: Place) -> list[str]:
        config = place.folder / "litellm.yaml"
        config.write_text(_LITELLM_CONFIG.format(upstream=place.upstream))
        return [
            *(str(binaries / "litellm"), "--config", str(config)),
            *("--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"),
        ]

    return Program(
        name=LITELLM,
        version=_ask([str(binaries / "python"), "-c", "import importlib.metadata as m; print(m.version('litellm'))"]),
        command=command,
        ready_path="/health/liveliness",
        parses=False,  # it passes tools and text on as they are
        slow=True,
        env={
            # Its cheapest way to run: nothing printed, nothing fetched, no key to check (on loopback, for minutes).
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "DISABLE_ADMIN_UI": "True",
        },
    )


_NGINX_CONFIG = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
{user}
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream scripted {{ server 127.0.0.1:{upstream_port}; keepalive 64; keepalive_requests 1000000; }}
    server {{
        listen 127.0.0.1:{port};
        location = /health {{ return 200; }}
        location / {{
            proxy_pass http://scripted;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


def _nginx(*, allowed: bool) -> Program:  # noqa: ARG001 - the machine's own
    binary = shutil.which("nginx")
    if binary is None:
        raise UnavailableError("nginx is not installed")

    def command(place: Place) -> list[str]:
        # Started as root it would give its workers to a user who may not read the build folder.
        user = f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
        config = place.folder / "nginx.conf"
        config.write_text(
            _NGINX_CONFIG.format(folder=place.folder, port=place.port, upstream_port=place.upstream_port, user=user)
        )
        return [binary, "-p", str(place.folder), "-c", str(config), "-e", "stderr"]

    return Program(
        name=NGINX,
        version=_ask([binary, "-v"]).rpartition("/")[2],
        command=command,
        ready_path="/health",
        parses=False,  # it decodes nothing: the floor of what passing bytes on costs
    )


ROWS: dict[str, Maker] = {
    OURS: _patchbay,
    TRACED: _traced,
    ORIGINAL: _llm_tool_proxy,
    LITELLM: _litellm,
    NGINX: _nginx,
}
"""Every program that is measured, in the order of the table's columns."""


def _ask(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"`{Path(argv[0]).name}` does not run: {done.stderr.strip()[-300:]}")
    return (done.stdout or done.stderr).strip()
