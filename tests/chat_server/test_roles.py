"""Whose tools a request gets: the header's, else those of a ``user`` that is a role, else the first role's."""

from __future__ import annotations

import openai
import pytest

from chat_server.rig import MODEL, USER, serve_chat
from patchbay.errors import ConfigurationError, UnknownRoleError
from patchbay.server.chat.handler import role_of


@pytest.mark.parametrize(
    ("header", "user", "role"),
    [(None, None, "ann"), (b"ben", None, "ben"), (b"", "ben", "ben"), (None, "ben", "ben"), (b"ann", "ben", "ann"), (None, "x", "ann"),
     (None, 5, "ann"), ("小八".encode(), None, "小八"), (b"%E5%B0%8F%E5%85%AB", None, "小八"), (b"50%25", None, "50%25"), (None, "小八", "小八")],
)  # fmt: skip
def test_a_role_is_found(header: bytes | None, user: object, role: str) -> None:
    assert role == role_of(header, user, ("ann", "ben", "小八", "50%25"))


def test_a_header_that_names_none_is_refused() -> None:
    for header in (b"eve", b"Ann", b"\xff"):
        with pytest.raises(UnknownRoleError):
            role_of(header, "ann", ("ann",))
    with pytest.raises(ConfigurationError):
        role_of(None, None, ())


def test_the_role_decides_which_tools_there_are() -> None:
    with serve_chat(lambda _: "ok", roles=("ann", "小八")) as at:
        at.server.register("for_all")
        at.server.register("for_one", role="小八")
        for fields, role in (
            ({}, "ann"), ({"user": "小八"}, "小八"), ({"user": "somebody"}, "ann"),
            ({"extra_headers": {"X-Patchbay-Role": "%E5%B0%8F%E5%85%AB"}}, "小八"),
            ({"extra_headers": {"X-Patchbay-Role": "ann"}, "user": "小八"}, "ann"),
        ):  # fmt: skip
            assert role == at.ask(**fields).model_extra["patchbay"]["role"]
            expected = ["for_all"] if role == "ann" else ["for_all", "for_one"]
            assert expected == [tool["function"]["name"] for tool in at.asked[-1]["tools"]]
            assert fields.get("user") == at.asked[-1].get("user")
            assert "x-patchbay-role" not in at.upstream.chats[-1].headers


def test_a_role_that_does_not_exist_is_404_in_openais_words() -> None:
    with serve_chat([]) as at:
        with pytest.raises(openai.NotFoundError) as caught:
            at.ask(extra_headers={"X-Patchbay-Role": "eve"})
        assert ("unknown_role", "invalid_request_error") == (caught.value.code, caught.value.type)
        assert {
            "error": {"message": "unknown role: eve", "type": "invalid_request_error", "code": "unknown_role", "param": None}
        } == (at.post({"model": MODEL, "messages": [USER]}, x_patchbay_role="eve").json)
        assert [] == at.upstream.requests
