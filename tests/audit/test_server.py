"""GET /api/events and GET /api/audit of a real server: who may read, what is read, and how it ends."""

from __future__ import annotations

import contextlib
import threading

import pytest

from .serving import Events, serving, wait_for

TOKEN = "0123456789abcdef-token"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("locked"), token=TOKEN) as running:
        yield running


def test_a_turn_is_read_as_it_goes(server):
    with contextlib.closing(Events(server)) as events:
        server.run(message="How much?")
        outcome = events.turn()
    rounds = ["agent.llm.request", "agent.llm.response"]
    kinds = [each["kind"] for each in outcome]
    assert ["agent.turn.start", *rounds] == kinds[:3]
    assert ["agent.tool.exec_end", "agent.tool.exec_skipped", "agent.tool.exec_start"] == sorted(kinds[3:6])
    assert ["agent.user_output", *rounds, "agent.turn.end"] == kinds[6:]
    by_kind = {each["kind"]: each for each in outcome}
    assert {
        "agent_id": "helper",
        "session_key": "s1",
        "turn_id": "turn-0001",
        "channel": "telegram",
        "sender_id": "ann",
    } == outcome[0]["scope"]
    assert "How much?" == outcome[0]["payload"]["UserMessage"]
    skipped = by_kind["agent.tool.exec_skipped"]
    assert ("c2", [{"by": "policy", "point": "before_tool", "decision": "denied: nothing is removed here"}]) == (
        skipped["attrs"]["call_id"], skipped["attrs"]["decisions"],
    )  # fmt: skip
    assert {"Tool": "add", "Text": "xxxx", "Media": [], "Handled": False} == by_kind["agent.user_output"]["payload"]


def test_reader_resumes_after_its_last_event(server):
    with contextlib.closing(Events(server, "/api/events?kind=agent.turn.*")) as events:
        server.run(message="one")
        first = events.next()
        place = events.last_id
    server.run(message="two")
    with contextlib.closing(Events(server, "/api/events?kind=agent.turn.*", headers={"Last-Event-ID": place})) as events:
        rest = [events.next() for _ in range(3)]
    assert ["one", "one", "two", "two"] == [each["payload"]["UserMessage"] for each in [first, *rest]]


def test_disconnected_reader_frees_its_place(server):
    wait_for(lambda: server.ask("GET", "/readers")[1] == 0)
    streams = [Events(server) for _ in range(3)]
    status, refused = server.ask("GET", "/api/events")
    assert (503, "too_many_readers") == (status, refused["error_code"])
    for each in streams:
        each.close()
    wait_for(lambda: server.ask("GET", "/readers")[1] == 0)
    Events(server).close()


def test_stalled_reader_gets_a_dropped_count_and_the_server_continues(server):
    wait_for(lambda: server.ask("GET", "/readers")[1] == 0)
    with contextlib.closing(Events(server, "/api/events?kind=agent.user_output&kind=agent.turn.end")) as events:
        for _ in range(60):  # 12 MB: more than sockets hold, and more than may wait
            server.run(shown=200_000)
        server.run(message="last")
        kinds, missing = [], 0
        while "stream.dropped" not in kinds:
            outcome = events.next()
            kinds.append(outcome["kind"])
            missing += outcome["payload"].get("count", 0)
    assert (0 < missing <= 122, "agent.user_output") == (True, kinds[0])


def test_events_and_audit_require_the_token(locked):
    for path in ("/api/events", "/api/audit"):
        assert 401 == locked.ask("GET", path, token=None)[0]
        assert 401 == locked.ask("GET", path, token="wrong")[0]
    assert 200 == locked.ask("GET", "/api/audit")[0]
    Events(locked).close()


def test_audit_accepts_the_documented_parameters(server):
    server.run(session="audited")
    status, outcome = server.ask("GET", "/api/audit?session=audited")
    assert (200, True, None) == (status, outcome["ok"], outcome["cursor"])
    assert {("add", ""), ("remove", "tool_denied")} == {(each["tool"], each["code"]) for each in outcome["entries"]}
    _, refused = server.ask("GET", "/api/audit?session=audited&denied=true&tool=rem*&tool=x")
    assert ["remove"] == [each["tool"] for each in refused["entries"]]
    _, page = server.ask("GET", "/api/audit?session=audited&limit=1")
    _, rest = server.ask("GET", f"/api/audit?session=audited&limit=1&before={page['cursor']}")
    assert outcome["entries"] == page["entries"] + rest["entries"]
    _, newer = server.ask("GET", f"/api/audit?session=audited&after={rest['entries'][0]['id']}")
    assert page["entries"] == newer["entries"]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "since=nan", "before=-1", "after=99999999999999999999"])
def test_invalid_filter_is_refused(server, query):
    assert 422 == server.ask("GET", f"/api/audit?{query}")[0]


@pytest.mark.parametrize(
    ("path", "name"), [("audit?limt=1", "limt"), ("audit?tool=x&Session=s1", "Session"), ("events?kinds=agent.error", "kinds")]
)
def test_unknown_parameter_is_refused_by_name(server, path, name):
    status, outcome = server.ask("GET", f"/api/{path}")
    assert (422, [["query", name]]) == (status, [each["loc"] for each in outcome["detail"]])


@pytest.mark.parametrize("file", ["nowhere/audit.db", "junk.db"])
def test_unreadable_audit_database_is_http_503(tmp_path, file):
    (tmp_path / "junk.db").write_bytes(b"no database at all\n" * 100)
    with serving(tmp_path, database=f"sqlite:///{tmp_path / file}") as server:
        status, outcome = server.ask("GET", "/api/audit")
    assert (503, "audit_unavailable") == (status, outcome["error_code"])
    assert "The audit cannot be read now: " in outcome["detail"]


def test_a_server_that_stops_ends_its_streams_at_once(tmp_path):
    with serving(tmp_path) as server:
        events = Events(server)
        statuses: list[int] = []
        stopping = threading.Thread(target=lambda: statuses.append(server.stop()))
        stopping.start()
        with pytest.raises(EOFError):
            events.next()
        stopping.join(30)
        assert [0] == statuses
        events.close()
