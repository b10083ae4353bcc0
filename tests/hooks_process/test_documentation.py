"""What ``docs/guides/hook-processes.md`` shows is so. (Its Python runs in ``scripts/check_docs.py``.)"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest

from hooks_process.peers import run
from patchbay.hooks.config import parse_hooks_config
from patchbay.hooks.config.settings import _DEFAULTS, _PROCESS
from patchbay.hooks.process import ProcessLimits, ProcessSpec
from patchbay.hooks.process.doctor import examine
from patchbay.hooks.process.wire import read_reply

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


@pytest.mark.parametrize("key", sorted({*_PROCESS, *(f"defaults.{name}" for name in _DEFAULTS)}))
def test_every_key_is_described(key):
    assert f"`{key}`" in PAGE


def test_the_numbers_it_names_are_those_of_the_program():
    limits = {field.name: field.default for field in dataclasses.fields(ProcessLimits)}
    assert (1048576, 5.0, 5, 2.0, 1.0) == tuple(limits[name] for name in ("line", "hello", "restarts", "eof_grace", "term_grace"))
