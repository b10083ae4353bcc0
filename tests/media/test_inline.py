"""Base64 in texts is found in any place and form, nothing else is mistaken for it, and the search is cheap."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from media.pictures import png
from patchbay.media import MediaRefusedError
from patchbay.media.content import (
    drop_cut_base64,
    make_data_url,
    may_have_base64,
    parse_data_url,
    replace_base64,
)

IMAGE = png(filler=4000)
CODE = base64.b64encode(IMAGE).decode()
URL = f"data:image/png;base64,{CODE}"


def lifted(text: str) -> tuple[str, list[bytes]]:
    found: list[bytes] = []

    def put(piece):
        found.append(piece.data)
        return f"<{len(found)} {piece.media_type}>"

    return replace_base64(text, put), found


def wrapped(text: str, width: int = 76, end: str = "\n") -> str:
    return end.join(text[place : place + width] for place in range(0, len(text), width))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (URL, "<1 image/png>"),
        (f"see {URL} there", "see <1 image/png> there"),
        (f"![a cat]({URL})", "![a cat](<1 image/png>)"),
        (f'<img src="{URL}">', '<img src="<1 image/png>">'),
        (json.dumps({"image": URL, "n": 1}), '{"image": "<1 image/png>", "n": 1}'),
        (f"{URL}\n{URL}", "<1 image/png>\n<2 image/png>"),
        (f"data:image/png;name=a.png;base64,{CODE}", "<1 image/png>"),
        (f"data:;base64,{CODE}", "<1 >"),
    ],
)
def test_base64_is_found_anywhere_in_a_text(text, expected):
    assert may_have_base64(text)
    shown, found = lifted(text)
    assert expected == shown
    assert {IMAGE} == set(found)


def test_base64_in_the_escapes_of_other_writers_of_json_is_found():
    as_php = json.dumps({"image": URL}).replace("/", "\\/")
    as_dotnet = json.dumps({"image": URL}).replace("+", "\\u002B").replace("=", "\\u003d")
    in_json = json.dumps({"body": json.dumps({"image": URL})})
    assert ('{"image": "<1 image/png>"}', [IMAGE]) == lifted(as_php)
    assert ('{"image": "<1 image/png>"}', [IMAGE]) == lifted(as_dotnet)
    assert ('{"body": "{\\"image\\": \\"<1 image/png>\\"}"}', [IMAGE]) == lifted(in_json)


def test_the_alphabet_for_urls_and_a_missing_padding_are_understood():
    for size in (3000, 3001, 3002):
        data = random.Random(size).randbytes(size)
        for text in (base64.urlsafe_b64encode(data).decode(), base64.b64encode(data).decode().rstrip("=")):
            assert ("<1 a/b>", [data]) == lifted(f"data:a/b;base64,{text}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sunny",
        CODE,
        wrapped(URL),
        "data:image/png;base64,iVBORw0KGgo=",
        f"data:image/png;base64,{CODE[:100]}",
        f"data:image/png;base64,{CODE[:401]}",  # one letter too many
        f"data:image/png;base64,{CODE[:200]}!{CODE[:200]}",
        f"database;base64,{'x' * 300}.",
        f"data: what;base64,{CODE[:400]}",
        "x" * 100_000,
        "-" * 100_000,
        "ACGT" * 10_000,
        "\n" * 100_000,
        "\\" * 100_000,
        "deadbeef0123456789" * 1000,
        "\n".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(200)),
        "\n".join(f"src/patchbay/Module{number}/file_{number}.py" * (1 + number % 3) for number in range(400)),
        " ".join(string.ascii_letters + string.digits for _ in range(1000)),
        json.dumps([{"id": f"Xy{number}", "name": "Name" * 20} for number in range(500)]),
        "Lorem ipsum dolor sit amet, consectetur 12 Times. " * 1000,
        "漢字" * 20_000,
        "/".join(f"Module-{number}" for number in range(1000)),
    ],
)
def test_short_or_other_text_is_unchanged(text):
    assert (text, []) == lifted(text)


def test_hostile_texts_are_read_in_one_go():
    # Each of these would take hours to anything that goes over a stretch again for every place in it.
    size = 2_000_000
    texts = [
        "data:image/png;base64," * (size // 22),
        ";base64," * (size // 8),
        "data:" * (size // 5) + ";base64," + "A" * size,
        "A" * size,
        ("A" * 1500 + "!") * (size // 1501),
        ("Ab1" * 500 + "\n") * (size // 1501),
        "\\" * size,
        "\\n" * (size // 2),
        "Ab1\n" * (size // 4),
        ("aB3" * 1000 + "=") * (size // 3001),
        ("Ab1d" * 600 + "\\") * (size // 2401),
        "data:image/png;base64," + "Ab1d\n" * (size // 5),
    ]
    for text in texts:
        shown, _ = lifted(text)
        assert len(shown) <= len(text)


@given(
    st.lists(
        st.one_of(
            st.text(alphabet='abc \n.,;:="\\/{}data:;base64,', max_size=40),
            st.sampled_from([URL, URL[:300], "A" * 3000, ";base64,", "data:x/y;base64,", "\\" * 50]),
        ),
        max_size=6,
    )
)
def test_only_what_may_have_base64_is_changed(parts):
    text = "".join(parts)
    shown, found = lifted(text)
    assert bool(found) == (shown != text)
    assert not found or may_have_base64(text)


@given(st.binary(min_size=1540, max_size=5000), st.text(alphabet=" .,:(){}\"'", min_size=1, max_size=5))
def test_any_bytes_round_trip_between_any_markers(data, mark):
    code = base64.b64encode(data).decode()
    text = f"{mark}data:a/b;base64,{code}{mark}"
    assert (f"{mark}<1 a/b>{mark}", [data]) == lifted(text)


@given(st.binary(max_size=200))
def test_a_data_url_is_read_back(data):
    assert (data, "a/b") == parse_data_url(make_data_url(data, "a/b"))


def test_data_urls_are_read_as_browsers_do():
    assert (b"\xff\xfe~", "") == parse_data_url("data:;base64,%2F%2F5%2B".replace("%2B", "%2B"))
    assert (b"a b", "text/plain") == parse_data_url("DATA:,a%20b")
    assert (b"<svg/>", "image/svg+xml") == parse_data_url("data:image/svg+xml;charset=utf-8,<svg/>")
    for wrong in ("data:text/plain", "data:x;base64,a", "data:x;base64,====", "http:x"):
        with pytest.raises(MediaRefusedError):
            parse_data_url(wrong)


def test_base64_that_a_text_was_cut_in_is_left_out():
    for cut in range(400, 404):
        half = f'{{"images": [{{"data": "{CODE[:cut]}'
        assert f'{{"images": [{{"data": "[{cut} characters of base64 are left out: the rest is missing]' == drop_cut_base64(half)
    for whole in ("", "sunny", f"look: {CODE[:200]}", "x" * 5000, f"{CODE} and words", f'"{CODE[:200]}', "a/b-c/" * 1000):
        assert whole == drop_cut_base64(whole)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_json_in_json_hides_no_base64(depth):
    text = URL
    for _ in range(depth):
        text = json.dumps({"in": text}).replace("/", "\\/")
    shown, found = lifted(text)
    assert [IMAGE] == found
    for _ in range(depth):
        shown = json.loads(shown)["in"]
    assert "<1 image/png>" == shown
