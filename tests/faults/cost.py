"""CPU of the servers for a call, a registration and a chat: of one server on SQLite, and of three on PostgreSQL.

``python -m faults.cost``: the least of three rounds each, in microseconds.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agents.databases import postgres_server
from faults.cluster import PLUGIN
from faults.rig import Service, poll_until
from faults.soak import Sample
from patchbay.testing import ScriptedUpstream
from plugins.host_rig import write_plugin

ROUNDS, COUNT, WARM, RUN = 3, 600, 600, 50


class Client:
    """One connection to each server, used in turn for RUN requests: one by one, each would find the processor's caches cold."""

    def __init__(self, servers: list[Service]) -> None:
        connections = [http.client.HTTPConnection("127.0.0.1", each.port) for each in servers]
        self._connections = itertools.cycle([each for each in connections for _ in range(RUN)])

    def post(self, path: str, body: Any) -> Any:
        connection = next(self._connections)
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        assert 200 == response.status, answer
        return answer


@contextlib.contextmanager
def running(folder: Path, store: str, count: int, upstream: str) -> Iterator[list[Service]]:
    """Run servers, and a host of plugins."""
    write_plugin(folder / "plugins" / "p", PLUGIN.format(number=0, journal=str(folder / "journal")))
    with contextlib.ExitStack() as ends:
        servers = [Service(f"server {n}", "serve", "--store", store, "--upstream", upstream, "-q") for n in range(count)]
        for each in servers:
            ends.callback(each.stop)
            each.start()
        host = Service("plugins", "plugins", "run", str(folder / "plugins"), "--server", servers[0].url)
        ends.callback(host.stop)
        host.start()
        for each in servers:
            client = Client([each])
            poll_until(lambda: client.post("/api/tools/call", {"name": "echo_0", "arguments": {"token": "t"}})["ok"])  # noqa: B023
        yield servers


def cost(servers: list[Service], request: Callable[[Client, int], None]) -> float:
    """The servers' CPU of one request in microseconds."""
    client = Client(servers)
    numbers = itertools.count()
    for _ in range(WARM):
        request(client, next(numbers))
    found = []
    for _ in range(ROUNDS):
        before = sum(Sample.of(each.child.pid).cpu for each in servers)
        for _ in range(COUNT):
            request(client, next(numbers))
        found.append((sum(Sample.of(each.child.pid).cpu for each in servers) - before) / COUNT)
    return round(1e6 * min(found))


def call(client: Client, number: int) -> None:
    assert client.post("/api/tools/call", {"name": "echo_0", "arguments": {"token": f"t{number}"}})["ok"]


def register(client: Client, number: int) -> None:
    body = {"name": f"x{number % 100}", "description": str(number), "callback_url": "http://127.0.0.1:9/"}
    assert client.post("/api/tools/register", body)["stored"]


def chat(client: Client, number: int) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": f"hi {number}"}]}
    assert client.post("/v1/chat/completions", body)["choices"]


def main() -> None:
    """Print the figures, and their ratios."""
    kinds = {"call": call, "registration": register, "chat": chat}
    found: dict[str, dict[str, float]] = {}
    with ScriptedUpstream(lambda _body: "Hello.") as upstream, postgres_server() as postgres, tempfile.TemporaryDirectory() as at:
        for name, count in (("one server, SQLite", 1), ("one server, PostgreSQL", 1), ("three servers, PostgreSQL", 3)):
            folder = Path(at) / name.replace(" ", "_")
            store = postgres if "PostgreSQL" in name else f"sqlite:///{folder}/tools.db"
            folder.mkdir()
            with running(folder, store, count, upstream.url) as servers:
                found[name] = {kind: cost(servers, request) for kind, request in kinds.items()}
            sys.stderr.write(f"{name}: {found[name]}\n")
    one, three = found["one server, SQLite"], found["three servers, PostgreSQL"]
    print(json.dumps({**found, "ratio": {kind: round(three[kind] / one[kind], 2) for kind in one}}, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
