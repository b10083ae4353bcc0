"""The list of guards matches the source and the tests. ``make guards`` proves each guard by breaking it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def guards():
    spec = importlib.util.spec_from_file_location("guards", ROOT / "scripts" / "guards.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["guards"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["guards"]


def test_every_guard_is_in_its_file_once_and_has_its_test(guards):
    listed = guards.read_guards()
    assert 50 < len(listed) == len({guard.name for guard in listed})
    for guard in listed:
        guards.broken_source(guard, ROOT / "src" / "patchbay" / guard.file)
        file, _, name = guard.test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), guard.test


@pytest.mark.parametrize(
    ("text", "replacement", "problem"),
    [("gone", "", "found 0 times"), ("a", "", "found 2 times"), ("1", "(", "a syntax error")],
)
def test_guard_that_cannot_be_broken_is_a_problem(guards, tmp_path, text, replacement, problem):
    (tmp_path / "a.py").write_text("a = 1 + a\n")
    with pytest.raises(guards.NotProvedError, match=problem):
        guards.broken_source(guards.Guard("", "a.py", text, replacement, ""), tmp_path / "a.py")
