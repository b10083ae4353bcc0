"""Where a tool may be called back."""

from __future__ import annotations

from typing import Any

import pytest

from patchbay.server.callbacks import CallbackUrlError, read_callback_url


@pytest.mark.parametrize(
    ("url", "origin", "addresses", "target"),
    [
        ("http://127.0.0.1:9876/tool_invoke", "http://127.0.0.1:9876", ("127.0.0.1",), b"/tool_invoke"),
        ("http://127.5.6.7", "http://127.5.6.7:80", ("127.5.6.7",), b"/"),
        ("https://localhost/x?y=1&z=%20#part", "https://localhost:443", ("127.0.0.1", "::1"), b"/x?y=1&z=%20"),
        ("HTTP://LOCALHOST:1/", "http://localhost:1", ("127.0.0.1", "::1"), b"/"),
        ("http://[::1]:65535/a b/\u00e9", "http://[::1]:65535", ("::1",), b"/a%20b/%C3%A9"),
        ("http://[::ffff:127.0.0.1]:5/", "http://[::ffff:127.0.0.1]:5", ("::ffff:127.0.0.1",), b"/"),
    ],
)
def test_a_url_of_this_machine_is_taken(url: str, origin: str, addresses: tuple[str, ...], target: bytes) -> None:
    read = read_callback_url(url)
    assert (origin, addresses, target) == (read.origin, read.addresses, read.target)


REFUSED = {
    "ftp://127.0.0.1/": "must begin with http",
    "127.0.0.1:80/": "must begin with http",
    "//127.0.0.1/": "must begin with http",
    "": "must begin with http",
    "http://": "has no host",
    "http:///x": "has no host",
    "http://:80/": "has no host",
    "http:127.0.0.1": "has no host",
    **dict.fromkeys(
        [
            "http://0.0.0.0/", "http://[::]/", "http://127.1/", "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/",
            "http://localhost./", "http://127.0.0.1.nip.io/", "http://127.0.0.1@evil.com/", "http://evil.com#127.0.0.1",
            "http://evil.com?127.0.0.1", "http://\uff11\uff12\uff17.0.0.1/", "http://10.0.0.1/", "http://example.com/",
            "http://localhost.evil.com/", "http://[fe80::1]/", "http://[::ffff:10.0.0.1]/", "http://%31%32%37.0.0.1/",
            "http://\u24db\u24de\u24d2alhost/",
        ],
        "must lead to this machine",
    ),
    "http://u:p@127.0.0.1/": "must not contain a user",
    "http://@127.0.0.1/": "must not contain a user",
    "http://127.0.0.1:0/": "cannot be connected to",
    "http://127.0.0.1:99999/": "use 1 to 65535",
    "http://127.0.0.1:abc/": "use 1 to 65535",
    "http://127.0.0.1:-1/": "use 1 to 65535",
    "http://127.0.0.1\\@evil.com/": "control character, a backslash",
    "http://127.0.0.1/\r\nX: y": "control character",
    "http://127.0.0.1/\0": "control character",
    " http://127.0.0.1/": "blanks around it",
    "http://[::1": "cannot be read",
    "http://[::1%25lo]/": "must lead to this machine",
}  # fmt: skip


@pytest.mark.parametrize(("url", "why"), REFUSED.items())
def test_other_urls_are_refused_with_the_reason(url: str, why: str) -> None:
    with pytest.raises(CallbackUrlError, match=why):
        read_callback_url(url)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.3"])
def test_the_servers_own_port_is_422(server: Any, host: str) -> None:
    answer = server.post("register", name="a", callback_url=f"http://{host}:{server.port}/api/tools/clear")
    [detail] = answer.json["detail"]
    assert (422, "value_error", ["body", "callback_url"]) == (answer.status, detail["type"], detail["loc"])
    assert "own port" in detail["msg"]
