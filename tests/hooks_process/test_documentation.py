"""Examples, keys and numbers of ``docs/guides/hook-processes.md`` are true. (Its Python runs in ``scripts/check_docs.py``.)"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from patchbay._config import Table
from patchbay.hooks.config import parse_hooks_config, settings
from patchbay.hooks.process import ProcessLimits, ProcessSpec
from patchbay.hooks.process.doctor import examine
from patchbay.hooks.process.wire import read_reply
from support.running import run

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "hook-processes.md").read_text(encoding="utf-8")


def blocks(info):
    return re.findall(rf"^```{info}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_hook_without_the_sdk_passes(tmp_path):
    (source,) = blocks("py minimal")
    path = tmp_path / "minimal.py"
    path.write_text(source, encoding="utf-8")
    found = run(examine(ProcessSpec(name="h", command=(sys.executable, str(path))), timeout=20.0))
    assert [] == [each for each in found if each.outcome != "ok"]


def test_its_configuration_can_be_read():
    config = parse_hooks_config(json.loads(blocks("json")[0]))
    assert ("weather", ()) == (config.processes[0].spec.name, config.notes)


def test_its_answers_can_be_read():
    request, answer = blocks("json")[1].splitlines()
    assert json.loads(request)["id"] == read_reply(answer.encode()).id
    (hello,) = blocks("json")[2].splitlines()
    assert 1 == len(read_reply(hello.encode()).result["tools"])


def known_keys():
    """Return the keys that are looked for in the entry of a process, and in the defaults."""
    known = {}

    class Recorded(Table):
        def __init__(self, value, path):
            super().__init__(value, path)
            known[path] = self.known

    entry = {"enabled": True, "command": ["x"], "intercept": ["before_tool"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchbay._config.Table", Recorded)
        patch.setattr(settings, "Table", Recorded)
        settings.parse_hooks_config({"hooks": {"processes": {"h": entry}}})
    return sorted({*known["hooks.processes.h"], *(f"defaults.{name}" for name in known["hooks.defaults"])})


@pytest.mark.parametrize("key", known_keys())
def test_every_key_is_described(key):
    assert f"`{key}`" in PAGE


def test_the_numbers_it_names_are_those_of_the_program():
    limits = {field.name: field.default for field in dataclasses.fields(ProcessLimits)}
    assert (1048576, 5.0, 5, 2.0, 1.0) == tuple(limits[name] for name in ("line", "hello", "restarts", "eof_grace", "term_grace"))
