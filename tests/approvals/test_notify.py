"""Notes about requests that begin to wait: signed, without links and arguments, and never in the way of a call."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from patchbay.approvals import ApprovalPolicy, Rule, parse_policy, read_policy
from patchbay.approvals import notify as notes
from patchbay.approvals.notify import NotifySettings, note_of
from patchbay.errors import ConfigurationError

from .approval_calls import LONG, Files, ask, call_of, decided, executor_of, running_calls, service_at, stop, waiting
from .test_terminal import request

SECRET = "the-secret-of-this-test"


@dataclass
class Receiver:
    """A web server that records what is posted to it, and answers with ``statuses`` in turn, then with 204."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    posted: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    async def count(self, number: int) -> None:
        """Wait until so many notes were posted."""
        async with asyncio.timeout(LONG):
            while len(self.posted) < number:
                await asyncio.sleep(0.005)


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.posted.append((self.path, dict(self.headers), body))
            receiver.may_answer.wait(LONG)
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if status == 302:
                self.send_header("Location", f"{receiver.url}/elsewhere")
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield receiver
        finally:
            receiver.may_answer.set()
            server.shutdown()
            thread.join(LONG)


@pytest.fixture
def receiver(monkeypatch):
    monkeypatch.setattr(notes, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(notes, "LONGEST_DELAY", 0.01)
    with receiving() as running:
        yield running


def policy(url: str) -> ApprovalPolicy:
    return ApprovalPolicy(otherwise=Rule(name="all", deadline=600), notify=NotifySettings(url, SECRET))


async def test_a_request_that_begins_to_wait_is_posted_once_and_signed(receiver, monkeypatch, tmp_path):
    monkeypatch.setenv("NOTES_SECRET", SECRET)
    config = tmp_path / "approvals.toml"
    config.write_text(f'default = "ask"\nnotify = "{receiver.url}/hook?room=1"\nnotify_secret_env = "NOTES_SECRET"\n')
    async with service_at(policy=read_policy(config)) as service:
        asked, _ = await decided(service, "approve", call_of("/srv/secret"))
        await receiver.count(1)
    [(path, headers, body)] = receiver.posted
    note = json.loads(body)
    assert ("/hook?room=1", "application/json") == (path, headers["Content-Type"])
    assert f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}" == headers["X-Patchbay-Signature"]
    assert str(note["time"]) == headers["X-Patchbay-Timestamp"]
    expected = {
        "type": "approval.requested",
        "id": asked.id,
        "tool": "delete",
        "agent": "helper",
        "session": "s1",
        "rule": "default",
    }
    assert expected == {name: note[name] for name in expected}
    assert (asked.deadline, "A call of delete waits for approval.") == (note["deadline"], note["text"])
    assert not re.search(rb"secret|//|http", body)


async def test_a_call_does_not_wait_for_its_note(receiver):
    receiver.may_answer.clear()
    async with service_at(policy=policy(receiver.url)) as service:
        files = Files()
        await decided(service, "approve", files=files)
        await receiver.count(1)
        assert ["/a"] == files.deleted  # and nothing has answered yet


async def test_a_note_is_sent_again_after_a_failure_of_the_address_and_not_after_a_refusal(receiver):
    receiver.statuses = [500, 429]
    async with service_at(policy=policy(receiver.url)) as service:
        await decided(service, "deny")
        await receiver.count(3)
        receiver.statuses = [404]
        await decided(service, "deny")
        await receiver.count(4)
        receiver.statuses = [302]
        await decided(service, "deny")
        await receiver.count(5)
        await decided(service, "deny")
        await receiver.count(6)
    ids = [json.loads(body)["id"] for _, _, body in receiver.posted]
    assert ids[0] == ids[1] == ids[2]
    assert 4 == len({*ids})
    assert {"/"} == {path for path, _, _ in receiver.posted}  # a redirect is not followed


async def test_an_address_that_fails_is_logged_once(receiver, caplog):
    receiver.statuses = [404] * 5
    async with service_at(policy=policy(receiver.url)) as service:
        for number in range(5):
            await decided(service, "deny")
            await receiver.count(number + 1)
        await decided(service, "deny")
        await receiver.count(6)
    logged = [each.getMessage() for each in caplog.records if "notify" in each.name]
    assert ["approvals.notify: the address answered HTTP 404 (logged every 10 minutes at most)"] == logged


async def test_notes_that_wait_are_bounded(receiver, monkeypatch, caplog):
    monkeypatch.setattr(notes, "MAX_QUEUED", 2)
    receiver.may_answer.clear()
    async with service_at(policy=policy(receiver.url)) as service:
        executor = executor_of(service, Files())
        tasks = [running_calls(executor, call_of("/0"))]
        await receiver.count(1)
        tasks += [running_calls(executor, call_of(f"/{number}")) for number in range(1, 6)]
        await waiting(service, 6)
        receiver.may_answer.set()
        await receiver.count(3)
        await stop(*tasks)
    assert 3 == len(receiver.posted)
    assert any("further ones are dropped" in each.getMessage() for each in caplog.records)


async def test_a_reload_changes_where_notes_go(receiver):
    async with service_at(policy=ApprovalPolicy(otherwise=Rule(name="all"))) as service:
        executor = executor_of(service, Files())
        await decided(service, "deny", executor=executor)
        service.policy = policy(receiver.url)
        task, asked = await ask(service, executor=executor)
        await receiver.count(1)
        await stop(task)
    assert [asked.id] == [json.loads(body)["id"] for _, _, body in receiver.posted]


@pytest.mark.parametrize(
    "hostile",
    ["https://evil.invalid/x", "//evil.invalid", "<https://evil.invalid|ok>", "[ok](http://evil.invalid)", "a\u202eb\x00"],
)
def test_names_in_a_note_are_no_links(hostile):
    note = note_of(request(tool=hostile, source=hostile, role=hostile, agent=hostile, session_key=hostile, rule=hostile), now=1)
    assert "A call of a tool waits for approval." == note["text"]
    assert not re.search(r"[/<>|()\[\]\x00\u202e]", "".join(each for each in note.values() if isinstance(each, str)))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"notify": "http://example.com/x"}, "https"),
        ({"notify": "ftp://127.0.0.1/x"}, "https"),
        ({"notify": "https://user:word@example.com/"}, "without a user name"),
        ({"notify": "https://"}, "https"),
        ({"notify": "https://example.com:99999/"}, "https"),
        ({"notify": "https://example.com/a b"}, "https"),
        ({"notify": "http://127.0.0.1.example.com/"}, "https"),
        ({"notify": "https://example.com/", "notify_secret_env": ""}, "needs a secret"),
        (
            {"notify": "https://example.com/", "notify_secret_env": "NO_SUCH_VARIABLE"},
            "no environment variable 'NO_SUCH_VARIABLE'",
        ),
        ({"notify": "https://example.com/", "notify_secret_env": "SHORT"}, "16 characters"),
        ({"notify": "", "notify_secret_env": "SHORT"}, "which is missing"),
        ({"notify": "https://example.com/", "notify_secret_file": "/no/such/file"}, "cannot be read"),
        ({"notify": "https://example.com/", "notify_secret_file": "READABLE", "notify_secret_env": ""}, "chmod 600"),
    ],
)
def test_settings_that_are_not_safe_are_refused(settings, problem, monkeypatch, tmp_path):
    readable = tmp_path / "secret"
    readable.write_text(SECRET)
    readable.chmod(0o644)
    monkeypatch.setenv("SHORT", "short")
    monkeypatch.setenv("NOTES_SECRET", SECRET)
    given = {"notify_secret_env": "NOTES_SECRET", **settings}
    if "notify_secret_file" in given:
        given |= {"notify_secret_env": "", "notify_secret_file": given["notify_secret_file"].replace("READABLE", str(readable))}
    with pytest.raises(ConfigurationError, match=problem):
        parse_policy(given)


def test_the_secret_is_read_from_a_file_of_the_owner_and_not_shown(tmp_path):
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(f"{SECRET}\n")
    found = parse_policy({"notify": "http://localhost:1/hook", "notify_secret_file": str(secret)})
    assert SECRET == found.notify.secret
    assert not re.search(f"{SECRET}|hook", repr(found))
