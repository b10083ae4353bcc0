"""Files over HTTP: access, content type, and headers for browsers."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from media.pictures import PDF, SVG, png
from patchbay.media import MediaMeta, MediaStore
from patchbay.server import MediaApp, ToolsSettings, auth
from patchbay.server.auth import AccessMiddleware, signed_path

DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


class Response:
    """The response to one request."""

    def __init__(self, app: Any, path: str, *, method: str = "GET", peer: str = "127.0.0.1", **headers: str) -> None:
        path, _, query = path.partition("?")
        self.sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(), "client": (peer, 1),
            "headers": [(name.encode(), value.encode()) for name, value in ({"host": "127.0.0.1:1"} | headers).items()],
        }  # fmt: skip
        asyncio.run(asyncio.wait_for(app(scope, receive, send), 30))
        self.status = self.sent[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
        self.body = b"".join(message["body"] for message in self.sent[1:])


@pytest.fixture
def store(tmp_path: Path):
    with MediaStore(tmp_path / "store") as made:
        yield made


def path_of(ref: str) -> str:
    return "/api/media/" + ref.removeprefix("media://")


def test_image_is_served_inline(store):
    answer = Response(MediaApp(store), path_of(store.put(png(), MediaMeta("cat.png"))))
    assert (200, png()) == (answer.status, answer.body)
    assert "image/png" == answer.headers["content-type"]
    assert str(len(png())) == answer.headers["content-length"]
    assert "inline; filename=\"cat.png\"; filename*=UTF-8''cat.png" == answer.headers["content-disposition"]
    assert "nosniff" == answer.headers["x-content-type-options"]


ACTIVE = """
text/javascript text/ecmascript text/jscript text/x-javascript1.5 application/x-ecmascript text/css text/xsl text/xml
application/rss+xml application/xml-dtd application/wasm multipart/x-mixed-replace message/rfc822 application/manifest+json
application/x-shockwave-flash application/vnd.wap.xhtml+xml
"""
"""Types that a browser may run, or that may load others."""


@pytest.mark.parametrize(
    ("data", "declared", "expected"),
    [
        (SVG, "image/svg+xml", "application/octet-stream"),
        (b"<script>alert(1)</script>", "text/html", "application/octet-stream"),
        (b"<script>alert(1)</script>", "image/png", "application/octet-stream"),
        (b"<x/>", "application/xhtml+xml", "application/octet-stream"),
        *((b"alert(1)", kind, "application/octet-stream") for kind in ACTIVE.split()),
        (b"PK\3\4", DOCX, DOCX),
        (PDF, "application/pdf", "application/pdf"),
        (b"a,b", "text/csv", "text/csv"),
    ],
)
def test_other_files_are_served_as_inert_downloads(store, data, declared, expected):
    answer = Response(MediaApp(store), path_of(store.put(data, MediaMeta(content_type=declared))))
    assert (200, data, expected) == (answer.status, answer.body, answer.headers["content-type"])
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "default-src 'none'; sandbox" == answer.headers["content-security-policy"]


def test_a_name_cannot_break_out_of_its_header(store):
    ref = store.put(b"x", MediaMeta('../a"\r\nX-Evil: 1; größe\ud800.txt', "text/plain"))
    answer = Response(MediaApp(store), path_of(ref))
    text = answer.headers["content-disposition"]
    assert "\r" not in text
    assert "\n" not in text
    assert 2 == text.count('"')
    assert "gr%C3%B6%C3%9Fe" in text
    assert "x-evil" not in answer.headers


def test_large_file_is_served_in_pieces(store):
    data = os.urandom(1_000_000)
    answer = Response(MediaApp(store), path_of(store.put(data)))
    assert data == answer.body
    assert len(answer.sent) > 3
    part = Response(MediaApp(store), path_of(store.put(data)), range="bytes=700000-999998")
    assert data[700_000:999_999] == part.body


@pytest.mark.parametrize(
    ("asked", "got", "expected"),
    [
        ("bytes=0-3", b"0123", "bytes 0-3/10"),
        ("Bytes=2-", b"23456789", "bytes 2-9/10"),
        ("bytes=-4", b"6789", "bytes 6-9/10"),
        ("bytes=8-99", b"89", "bytes 8-9/10"),
        ("bytes=9-9", b"9", "bytes 9-9/10"),
    ],
)
def test_range_of_a_file_is_served(store, asked, got, expected):
    path = path_of(store.put(b"0123456789"))
    answer = Response(MediaApp(store), path, range=asked)
    assert (206, got, expected) == (answer.status, answer.body, answer.headers["content-range"])
    assert str(len(got)) == answer.headers["content-length"]
    assert "attachment" in answer.headers["content-disposition"]


RANGES = ["bytes=0-", "bytes=-99", "bytes=-", "bytes=5-2", "bytes=0-1,3-4", "lines=0-1", f"bytes={'9' * 5000}-"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        *({"range": value} for value in RANGES),
        {"range": "bytes=0-1", "if-range": '"x"'},
        {"if-none-match": "*", "if-modified-since": "Fri, 01 Jan 2100 00:00:00 GMT"},
    ],
)
def test_whole_file_is_served_without_a_single_range(store, headers):
    answer = Response(MediaApp(store), path_of(store.put(b"0123456789")), **headers)
    assert (200, b"0123456789", "10") == (answer.status, answer.body, answer.headers["content-length"])
    assert ("bytes", False) == (answer.headers["accept-ranges"], "content-range" in answer.headers)


@pytest.mark.parametrize("asked", ["bytes=10-", "bytes=10-12", "bytes=-0", "bytes=999999999999999999-"])
def test_a_range_that_a_file_does_not_have_is_refused(store, asked):
    answer = Response(MediaApp(store), path_of(store.put(b"0123456789")), range=asked)
    assert (416, b"", "bytes */10", "0") == (
        answer.status,
        answer.body,
        answer.headers["content-range"],
        answer.headers["content-length"],
    )


def test_a_head_has_no_body(store):
    answer = Response(MediaApp(store), path_of(store.put(png())), method="HEAD")
    assert (200, b"", str(len(png()))) == (answer.status, answer.body, answer.headers["content-length"])


def test_missing_media_is_404_without_a_local_path(store):
    gone = store.put(b"x")
    path = store.resolve(gone)
    path.unlink()
    for asked in (path_of(gone), f"/api/media/{uuid.uuid4()}"):
        answer = Response(MediaApp(store), asked)
        assert 404 == answer.status
        assert {"detail", "error_code"} == set(json.loads(answer.body))
        assert str(path.parent).encode() not in answer.body


@pytest.mark.parametrize(
    "path",
    [
        "/api/media/",
        "/api/media",
        "/",
        "/api/media/..",
        "/api/media/../../etc/passwd",
        "/api/media/%2e%2e",
        "/other/{id}",
        "/api/media/{id}/x",
        "/api/media/{ID}",
    ],
)
def test_other_paths_are_404(store, path):
    name = store.put(b"x").removeprefix("media://")
    assert 404 == Response(MediaApp(store), path.replace("{id}", name).replace("{ID}", name.upper() + "!")).status


def test_only_reading_is_allowed(store):
    answer = Response(MediaApp(store), path_of(store.put(b"x")), method="DELETE")
    assert (405, "GET, HEAD") == (answer.status, answer.headers["allow"])
    assert 1 == store.count


async def test_file_truncated_while_served_aborts_the_connection(store, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 1_000_000)
    ref = store.store(path)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.start":
            os.truncate(path, 10)

    scope = {"type": "http", "method": "GET", "path": path_of(ref), "headers": []}
    with pytest.raises(OSError, match="was cut"):
        await MediaApp(store)(scope, None, send)
    assert all(message.get("more_body", True) for message in sent)


async def test_disconnected_client_is_not_an_error(store):
    ref = store.put(b"x" * 1_000_000)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            raise OSError("gone")

    await MediaApp(store)({"type": "http", "method": "GET", "path": path_of(ref), "headers": []}, None, send)


def test_guarded_files_are_for_local_clients_only(store):
    app = AccessMiddleware(MediaApp(store), ToolsSettings())
    path = path_of(store.put(png()))
    assert 200 == Response(app, path).status
    assert 403 == Response(app, path, peer="192.0.2.7").status
    assert 400 == Response(app, path, host="evil.example").status
    assert 403 == Response(app, path, origin="https://evil.example").status


TOKEN = "0123456789abcdef-token"


def test_media_requires_the_token_if_set(store):
    app = AccessMiddleware(MediaApp(store, needs_token=True), ToolsSettings(token=TOKEN))
    path = path_of(store.put(png()))
    refused = Response(app, path)
    assert (401, "Bearer", "wrong_token") == (
        refused.status,
        refused.headers["www-authenticate"],
        json.loads(refused.body)["error_code"],
    )
    assert (200, png()) == ((shown := Response(app, path, authorization=f"Bearer {TOKEN}")).status, shown.body)


def test_a_signed_path_is_for_one_file_until_it_expires(store, monkeypatch):
    app = MediaApp(store, needs_token=True)
    signed, other = (signed_path(store.put(data)) for data in (b"one", b"two"))
    assert (200, b"one") == ((got := Response(app, signed)).status, got.body)
    query = signed.partition("?")[2]
    for wrong in (
        f"{other.partition('?')[0]}?{query}",  # another file's
        signed[:-1] + ("0" if signed[-1] != "0" else "1"),
        signed.replace("expires=", "expires=1"),
        f"{signed}&x=1",
        signed.partition("&")[0],
    ):
        assert 401 == Response(app, wrong).status
    expired = auth.time.time() + auth.SIGNED_SECONDS
    monkeypatch.setattr(auth.time, "time", lambda: expired)
    assert 401 == Response(app, signed).status


def test_browser_behind_a_known_proxy_uses_a_signed_path(store):
    settings = ToolsSettings(token=TOKEN, proxies=("192.0.2.7",))
    app = AccessMiddleware(MediaApp(store, needs_token=True), settings)
    signed = signed_path(store.put(png()))
    assert (200, 401) == tuple(Response(app, path, peer="192.0.2.7").status for path in (signed, signed.partition("?")[0]))
