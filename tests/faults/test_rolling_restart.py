"""Three servers are restarted one after the other under load: no request fails of clients that retry once."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agents.databases import why_no_postgres
from faults.cluster import HOSTS, SERVERS, Cluster
from faults.rig import BOUND, PATIENCE, Service
from faults.soak import task, upstream

CLIENTS = 4
"""Of each kind."""

pytestmark = pytest.mark.skipif(why_no_postgres() is not None, reason=str(why_no_postgres()))


def is_ready(server: Service) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return send(server, "GET", "/readyz", None)[0] == 200
    return False


def send(server: Service, method: str, path: str, body: Any) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=BOUND)
    try:
        connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class LoadBalancer:
    """Sends requests to the servers that are ready, in turn, and a failed one once more."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ready = list(cluster.servers)
        self.retried: Counter[str] = Counter()
        self._next = itertools.count()

    def watch(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            self.ready = [server for server in self.cluster.servers if is_ready(server)] or self.ready

    def ask(self, kind: str, path: str, body: Any) -> bytes:
        """The answer; raises OSError, HTTPException or AssertionError where the second attempt fails as well."""
        with contextlib.suppress(OSError, http.client.HTTPException, AssertionError):
            return self._try(path, body)
        self.retried[kind] += 1
        return self._try(path, body)

    def _try(self, path: str, body: Any) -> bytes:
        ready = self.ready
        status, answer = send(ready[next(self._next) % len(ready)], "POST", path, body)
        assert 200 == status, answer
        return answer


@pytest.mark.timeout(300 * PATIENCE)
def test_a_rolling_restart_fails_no_request(tmp_path: Path) -> None:
    done: Counter[str] = Counter()

    def chat(balancer: LoadBalancer) -> None:
        token = uuid.uuid4().hex
        messages = [{"role": "user", "content": task(token)}]
        answer = balancer.ask("chat", "/v1/chat/completions", {"model": "soak", "stream": True, "messages": messages})
        assert f"result-{token}".encode() in answer
        assert answer.endswith(b"data: [DONE]\n\n")

    def call(balancer: LoadBalancer) -> None:
        key = uuid.uuid4().hex
        body = {"name": f"record_{int(key, 16) % HOSTS}", "arguments": {}, "idempotency_key": key}
        assert json.loads(balancer.ask("call", "/api/tools/call", body))["output"] == key

    def change(balancer: LoadBalancer) -> None:
        name = f"x{uuid.uuid4().hex}"
        body = {"name": name, "callback_url": f"{balancer.cluster.url}"}
        assert json.loads(balancer.ask("register", "/api/tools/register", body))["stored"]
        assert json.loads(balancer.ask("unregister", "/api/tools/unregister", {"name": name}))["ok"]

    def repeat(client: Any, balancer: LoadBalancer) -> None:
        while not stop.wait(0.02):
            client(balancer)
            done[client.__name__] += 1

    stop = threading.Event()
    options = ("--tools", "text", "--drain-delay", "1")
    with (
        upstream(0.1) as url,
        Cluster(tmp_path, serve=("--upstream", url, *options)) as cluster,
        ThreadPoolExecutor(3 * CLIENTS + 1) as threads,
    ):
        balancer = LoadBalancer(cluster)
        jobs = [threads.submit(balancer.watch, stop)]
        jobs += [threads.submit(repeat, client, balancer) for client in (chat, call, change) for _ in range(CLIENTS)]
        try:
            for server in cluster.servers:
                os.kill(server.child.pid, signal.SIGTERM)
                assert 0 == server.child.process.wait(BOUND)
                server.stop()
                server.start()
                cluster.await_tools()
        finally:
            stop.set()
        for job in jobs:
            job.result(BOUND)
    assert min(done[name] for name in ("chat", "call", "change")) > SERVERS, done
