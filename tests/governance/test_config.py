"""A server's file: its recognised and similar keys, and its summary at the start and after a reload."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path

import pytest

from hooks_process.peers import BOUND, process_of, script
from patchbay.errors import ConfigurationError
from patchbay.hooks import DenyTool
from patchbay.server.governance import Governance, GovernanceSettings
from support.processes import run_process

ASK = {"rules": [{"tools": ["erase"], "outcome": "ask"}]}


class Own:
    async def before_tool(self, call):
        return DenyTool("own")


def written(folder: Path, config) -> Path:
    path = folder / "patchbay.json"
    path.write_text(json.dumps(config))
    return path


def governance_of(folder: Path, config, **options) -> Governance:
    return Governance(GovernanceSettings(config=written(folder, config)), **options)


@contextlib.asynccontextmanager
async def opened(governance: Governance):
    try:
        await governance.open()
        yield governance
    finally:
        await governance.aclose()


@pytest.mark.parametrize(
    ("root", "words"),
    [
        ({"hook": {}}, "unknown key hook: did you mean hooks?"),
        ({"Hooks": {}}, "unknown key Hooks: did you mean hooks?"),
        ({"hooks": {}, "approval": ASK}, "unknown key approval: did you mean approvals?"),
        ({"hooks": {}, "aprovals": ASK}, "unknown key aprovals: did you mean approvals?"),
        ({"hooks": {}, "approvers": ASK}, "unknown key approvers: did you mean approvals?"),
        ({"hooks": {}, **ASK}, "rules stands beside 'hooks' or 'approvals', where it has no effect: write approvals.rules."),
        ({"hooks": {}, "default": "deny"}, "write approvals.default."),
        ({"hooks": {}, "deadline": 5}, "write approvals.deadline."),
        ({"hooks": {}, "who": ["http"]}, "write approvals.who."),
        ({"approvals": ASK, "rules": []}, "write approvals.rules."),
        ({"hooks": {}, "policy": {}}, "write hooks.policy."),
        ({"approvals": ASK, "processes": {}}, "write hooks.processes."),
        ({"rule": ASK["rules"]}, "there is neither 'hooks' nor 'approvals' in it: nothing would be governed."),
        ({"approvals": {"rule": []}}, "approvals.rule is not known: is 'rules' meant?"),
    ],
)
def test_setting_that_would_be_ignored_is_refused_with_the_way_out(tmp_path, root, words):
    with pytest.raises(ConfigurationError) as refused:
        governance_of(tmp_path, root)
    assert str(refused.value).startswith(f"{tmp_path / 'patchbay.json'}: ")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "others", [{"agents": {}, "model_list": [], "channels": {}, "session": {}}, {"webhooks": [], "books": 1, "removals": 2}]
)
def test_keys_of_other_programs_are_passed_over(tmp_path, others):
    assert "approvals by 1 rule" == governance_of(tmp_path, {**others, "hooks": {}, "approvals": ASK}).summary


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "nothing"),
        (ASK, "approvals by 1 rule"),
        ({"approvals": {"default": "deny"}}, "approvals: default deny"),
        ({"approvals": {**ASK, "default": "ask"}}, "approvals by 1 rule, default ask"),
        ({"hooks": {"processes": {"guard": {"command": ["guard"]}}}}, "guard is not enabled"),
        (
            {"hooks": {"enabled": False, "processes": {"guard": {}}}, "approvals": ASK},
            "hooks.enabled is false; approvals by 1 rule",
        ),
    ],
)
def test_governance_summary_lists_what_is_in_force(tmp_path, config, expected):
    assert expected == governance_of(tmp_path, config).summary


@pytest.mark.parametrize("command", ["list", "doctor"])
def test_the_commands_refuse_such_a_file_too(tmp_path, command):
    path = tmp_path / "patchbay.toml"
    path.write_text("[hook.processes.guard]\nenabled = true\ncommand = ['guard']\nintercept = ['before_tool']\n")
    arguments = [
        sys.executable,
        "-m",
        "patchbay",
        "hooks",
        command,
        "--config",
        str(path),
        *(["guard"] if command == "doctor" else []),
    ]
    done = run_process(arguments, capture_output=True, text=True, timeout=BOUND)
    assert (2, "") == (done.returncode, done.stdout)
    assert f"patchbay: {path}: unknown key hook: did you mean hooks?" in done.stderr


def builtin(**more):
    return {"hooks": {"builtins": {"own": {"enabled": True, **more}, "other": {"enabled": True}}}}


async def test_reload_summary_lists_removed_entries(tmp_path):
    governance = governance_of(
        tmp_path, {**builtin(), "approvals": ASK}, builtins={"own": lambda _: Own(), "other": lambda _: Own()}
    )
    async with opened(governance):
        assert "other; own; approvals by 1 rule" == await governance.reload()
        written(tmp_path, builtin(enabled=False))
        assert "other; own is not enabled; no more: own, approvals" == await governance.reload()
        written(tmp_path, {"hooks": {}})
        assert "nothing; no more: other" == await governance.reload()


async def test_reload_of_an_invalid_file_changes_nothing(tmp_path):
    guard = script(tmp_path, "", name="guard")
    process = {"enabled": True, "command": list(guard), "intercept": ["before_tool"]}
    config = {"hooks": {"processes": {"guard": process}}, "approvals": ASK}
    async with opened(governance_of(tmp_path, config)) as governance:
        before = process_of(governance.hooks, "guard"), governance.approvals.policy
        Path(guard[-1]).write_text("raise SystemExit('broken')")
        written(tmp_path, {"hooks": {"processes": {"guard": process}}})
        with pytest.raises(ConfigurationError) as refused:
            await governance.reload()
        assert "hooks.processes.guard does not start: hook.hello failed: exit status 1 (broken)" in str(refused.value)
        assert before == (process_of(governance.hooks, "guard"), governance.approvals.policy)
        assert ("running", "guard; approvals by 1 rule") == (before[0].state, governance.summary)
        written(tmp_path, {"hooks": {"processes": {}}, "approval": ASK})
        with pytest.raises(ConfigurationError, match="did you mean approvals"):
            await governance.reload()
        written(tmp_path, {"approvals": {"rules": [{"when": {"path": {"regex": "("}}, "outcome": "ask"}]}})
        with pytest.raises(
            ConfigurationError, match=r"approvals, rule '1': when\.path\.regex is not a usable regular expression"
        ):
            await governance.reload()
        assert before[1] is governance.approvals.policy
        await asyncio.sleep(0)
        assert "running" == before[0].state
