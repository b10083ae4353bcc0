"""The checker of the documentation sees what it is there to see."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_docs.py"


@pytest.fixture(scope="module")
def docs():
    spec = importlib.util.spec_from_file_location("check_docs", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_docs"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["check_docs"]


def fenced(info: str, body: str) -> str:
    return f"```{info}\n{body}\n```\n"


def examples(docs, text: str, **addresses: str) -> list[str]:
    return list(docs.check_examples(Path("page.md"), docs.blocks_of(text), addresses))


def test_examples_of_a_page_run_one_after_the_other(docs):
    assert [] == examples(docs, fenced("python", "a = 1") + "words\n\n" + fenced("python", "assert a == 1"))


def test_an_example_that_fails_is_found_with_its_line_on_the_page(docs):
    (problem,) = examples(docs, "# Title\n\n" + fenced("python", "a = 1\nraise ValueError('no')"))
    assert "ValueError: no" in problem
    assert "line 5" in problem


def test_a_warning_in_an_example_is_a_failure(docs):
    (problem,) = examples(docs, fenced("python", "import warnings\nwarnings.warn('old')"))
    assert "old" in problem


def test_what_an_example_prints_is_compared_with_the_block_behind_it(docs):
    text = fenced("python", "print('one')\nprint('two')")
    assert [] == examples(docs, text + "\n" + fenced("text output", "one\ntwo"))
    assert [] == examples(docs, text + "\n" + fenced("text output", "one\n..."))
    (problem,) = examples(docs, text + "\n" + fenced("text output", "one"))
    assert "two" in problem


def test_addresses_are_replaced_in_examples(docs):
    assert [] == examples(docs, fenced("python", "assert 'http://a' == 'http:' + '//b'"), **{"http://a": "http://b"})


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("make demo", None),
        ("make dmeo", "make has no target 'dmeo'"),
        ("patchbay proxy --upstream http://localhost:1/v1 --port=1", None),
        ("$ patchbay proxy --prot 1", "patchbay proxy has no --prot"),
        ("KEY=1 patchbay demo --json  # a remark", None),
        ("patchbay dance", "there is no command 'patchbay dance'"),
        ("patchbay plugins run plugins --watch", None),
        ("patchbay plugins run plugins --wacth", "patchbay plugins run has no --wacth"),
        ("patchbay plugins rnu", "there is no command 'patchbay plugins rnu'"),
        ("patchbay --version", None),
        ("python -m patchbay.testing.upstream --port 1", None),
        ("python -m patchbay.no_such", "there is no module patchbay.no_such"),
        ("python scripts/check_docs.py --write", None),
        ("python scripts/no_such.py", "there is no file scripts/no_such.py"),
        ("node examples/raw_http/plugin.mjs", None),
        ("node examples/raw_http/no_such.mjs", "there is no file examples/raw_http/no_such.mjs"),
        ("frobnicate", "what is 'frobnicate'?"),
    ],
)
def test_commands_are_looked_up(docs, command, complaint):
    expected = [] if complaint is None else [f"line 1: {complaint}"]
    assert expected == list(docs.check_commands(docs.blocks_of(fenced("sh", command))))


def test_generated_text_is_compared_with_what_the_command_prints(docs):
    start, end = "<!-- generated: patchbay --version -->\n", "<!-- end -->\n"
    assert [] == list(docs.check_generated(start + docs.generate("patchbay --version") + end))
    (problem,) = docs.check_generated(start + fenced("text", "patchbay 0.0.0") + end)
    assert "make docs" in problem


def test_links_and_anchors_are_followed(docs, tmp_path):
    (tmp_path / "other.md").write_text("# The `one` heading!\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md) [b](other.md#the-one-heading) [c](https://example.com/x) [d](gone.md) [e](other.md#no)")
    problems = list(docs.check_links(page, page.read_text()))
    assert ["the link to gone.md leads nowhere", "other.md has no heading for #no"] == problems
