"""Which headers cross, checked without a socket."""

from __future__ import annotations

from patchbay.server.http import chat_downward, downward, own_headers, upward


def test_names_from_outside_do_not_fill_the_memory() -> None:
    for number in range(5000):
        name = b"x-%d" % number
        assert [(name, b"1")] == upward([(name, b"1")], with_keys=False)
        assert [(name, b"1")] == downward([(name, b"1")])
        assert [] == chat_downward([(name, b"1")])


def test_repeated_headers_stay_repeated() -> None:
    assert [(b"x-a", b"1"), (b"x-a", b"2")] == upward([(b"x-a", b"1"), (b"x-a", b"2")], with_keys=False)
    assert [(b"vary", b"a"), (b"vary", b"b")] == downward([(b"Vary", b"a"), (b"vary", b"b")])


def test_headers_named_by_connection_stay_on_their_hop() -> None:
    assert [(b"x-b", b"2")] == downward([(b"Connection", b"close, X-A"), (b"X-A", b"1"), (b"X-B", b"2")])
    assert [(b"x-b", b"2")] == upward([(b"x-a", b"1"), (b"connection", b"x-a"), (b"x-b", b"2")], with_keys=False)


def test_keys_go_up_only_where_they_are_the_upstreams_business() -> None:
    headers = [(b"authorization", b"Bearer a"), (b"api-key", b"b"), (b"x-api-key", b"c")]
    assert [] == upward(headers, with_keys=False)
    assert headers == upward(headers, with_keys=True)


def test_own_headers_replace_equal_names_and_keep_their_spelling() -> None:
    headers = [(b"accept", b"a"), (b"x-b", b"2"), (b"accept", b"b")]
    assert [(b"x-b", b"2"), (b"Accept", b"c")] == upward(headers, with_keys=False, own=own_headers({"Accept": "c"}))
