"""The documentation checker finds each kind of problem that it is for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_docs.py"


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


def test_output_of_an_example_is_compared_with_the_next_block(docs):
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
        ("KEY=1 patchbay tail --json  # a remark", None),
        ("patchbay dance", "there is no command 'patchbay dance'"),
        ("patchbay plugins run plugins --watch", None),
        ("patchbay plugins run plugins --wacth", "patchbay plugins run has no --wacth"),
        ("patchbay mcp add files -- npx --yes server", None),
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
def test_documented_commands_exist(docs, command, complaint):
    expected = [] if complaint is None else [f"line 1: {complaint}"]
    assert expected == list(docs.check_commands(docs.blocks_of(fenced("sh", command))))


def test_generated_text_is_compared_with_the_output_of_the_command(docs):
    start, end = "<!-- generated: patchbay --version -->\n", "<!-- end -->\n"
    assert [] == list(docs.check_generated(start + docs.generate("generated", "patchbay --version") + end))
    (problem,) = docs.check_generated(start + fenced("text", "patchbay 0.0.0") + end)
    assert "make docs" in problem


def test_reference_tables_are_compared_with_the_code(docs):
    page = (ROOT / "docs/reference/errors.md").read_text()
    assert [] == list(docs.check_generated(page))
    (problem,) = docs.check_generated(page.replace("`unknown_tool`", "`unknown`"))
    assert "'errors' has changed: make docs" in problem


@pytest.mark.parametrize("name", ["cli", "configuration", "errors", "events", "http", "python"])
def test_reference_pages_can_be_read_in_the_repository(docs, name):
    (table,) = docs.GENERATED.finditer((ROOT / f"docs/reference/{name}.md").read_text())
    assert (name, True) == (table["name"], "| `" in table["body"])


def test_links_and_anchors_are_followed(docs, tmp_path):
    (tmp_path / "other.md").write_text("# The `one` heading!\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md) [b](other.md#the-one-heading) [c](https://example.com/x) [d](gone.md) [e](other.md#no)")
    problems = list(docs.check_links(page, page.read_text()))
    assert ["the link to gone.md leads nowhere", "other.md has no heading for #no"] == problems


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    """A repository with one measured package, and the commit in which it was measured."""
    (tmp_path / "src/patchbay/formats").mkdir(parents=True)
    (tmp_path / "src/patchbay/formats/a.py").write_text("a = 1\n" * 100)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "T")
    git(tmp_path, "config", "user.email", "t@example.org")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "measured")
    return tmp_path, git(tmp_path, "rev-parse", "--short=12", "HEAD")


def test_tables_stay_valid_while_the_measured_code_changes_little(docs, checkout):
    folder, commit = checkout
    (folder / "src/patchbay/formats/a.py").write_text("a = 2\n" * 1000)
    assert [] == list(docs.outdated(commit, "src/patchbay/*", folder))


def test_tables_are_outdated_once_a_measured_package_has_changed_by_more_than_2000_lines(docs, checkout):
    folder, commit = checkout
    (folder / "src/patchbay/formats/a.py").write_text("a = 2\n" * 2000)
    (problem,) = docs.outdated(commit, "src/patchbay/*", folder)
    assert f"src/patchbay/formats has changed by 2,100 lines since commit {commit}" in problem


def test_tables_of_a_commit_outside_of_the_history_are_refused(docs, checkout):
    folder, _ = checkout
    assert not docs.in_history("0123456789ab", folder)


def test_a_table_without_a_commit_is_a_problem(docs):
    table = "<!-- bench headlines: begin -->\n| a |\n<!-- bench headlines: end -->"
    (problem,) = docs.check_tables(table)
    assert "name no commit" in problem
