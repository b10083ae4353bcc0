"""Checks of the local configuration: real hooks, plugins, MCP servers and databases."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from patchbay.doctor import Finding, LocalSettings, check_local, local
from patchbay.mcp.config import McpServer
from patchbay.registrations import RegistrationStore
from patchbay.tools.registry import ToolRegistry

ROOT = Path(__file__).parents[2]
WEATHER_HOOK = ROOT / "examples" / "hooks" / "weather.py"
WEATHER_PLUGIN = ROOT / "examples" / "weather_plugin"
RAW_SERVER = ROOT / "tests" / "mcp_client" / "raw_server.py"


async def findings(**settings: Any) -> dict[str, Finding]:
    """What is found, by name, without what is found of Python and packages."""
    found = [each async for each in check_local(LocalSettings(**settings))]
    assert ["python", "packages"] == [each.name for each in found[:2]]
    return {each.name: each for each in found[2:]}


def hooks(folder: Path, **processes: Any) -> Path:
    """Write a server's file with these hook processes and an approval rule."""
    file = folder / "patchbay.json"
    entries = {name: {"enabled": True, "command": command, "intercept": ["before_llm"]} for name, command in processes.items()}
    file.write_text(json.dumps({"hooks": {"processes": entries}, "approvals": {"rules": [{"tools": ["rm*"], "outcome": "ask"}]}}))
    return file


async def test_a_good_hook_starts_and_answers_and_a_dead_one_is_a_problem_with_its_last_words(tmp_path: Path) -> None:
    dead = [sys.executable, "-c", "import sys; sys.exit('no licence')"]
    config = hooks(tmp_path, weather=[sys.executable, str(WEATHER_HOOK)], dead=dead)
    found = await findings(config=config)
    assert f"{config} has 2 process hooks and 0 built-in ones, and 1 approval rule." == found["config"].seen
    assert "ok" == found["hook:weather"].status
    assert found["hook:weather"].seen.startswith("It starts and answers: ")
    assert "problem" == found["hook:dead"].status
    assert "no licence" in found["hook:dead"].seen
    assert found["hook:dead"].advice


async def test_a_mistake_in_the_configuration_is_one_problem(tmp_path: Path) -> None:
    file = tmp_path / "patchbay.toml"
    file.write_text("[hooks.processes.weather]\nenabled = 1\n")
    found = await findings(config=file)
    assert ["config"] == list(found)
    assert "problem" == found["config"].status
    assert "hooks.processes.weather.enabled" in found["config"].seen


async def test_plugins_start_with_their_tools_and_bad_ones_say_why(tmp_path: Path) -> None:
    shutil.copytree(WEATHER_PLUGIN, tmp_path / "weather")
    for name, manifest in {
        "broken": '[plugin]\nid = "broken"\nentry = "main:Missing"',
        "wrong": '[plugin]\nentry = "main"',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "plugin.toml").write_text(manifest)
        (tmp_path / name / "main.py").write_text("")
    found = await findings(plugins=str(tmp_path))
    good = found["plugin:weather_plugin"]
    assert ("ok", "It starts, and offers find_warmest_city, get_weather.") == (good.status, good.seen)
    assert "problem" == found["plugin:broken"].status
    assert "Missing" in found["plugin:broken"].seen
    assert "problem" == found["plugins"].status
    assert "plugin.entry must be 'module:Class'" in found["plugins"].seen
    assert "A constraint enforces all of the schemas of 2 tools." == found["tool_schemas"].seen


async def test_what_no_constraint_enforces_of_a_tools_schema_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting.py").write_text(
        "from patchbay.plugins import PluginBase, llm_tool, plugin\n"
        "EVEN = {'type': 'object', 'properties': {'number': {'type': 'integer', 'multipleOf': 2}}}\n"
        "@plugin\n"
        "class Counting(PluginBase):\n"
        "    @llm_tool(name='halve', parameters=EVEN)\n"
        "    async def halve(self, *, number):\n"
        "        return number // 2\n"
    )
    monkeypatch.chdir(tmp_path)
    found = (await findings(plugins="counting:Counting"))["tool_schemas"]
    words = "1 tool; not enforced by a constraint, but checked after the answer: halve: /number/multipleOf"
    assert ("note", words) == (found.status, found.seen)


@pytest.mark.parametrize("target", ["empty", "missing.module:Plugin"])
async def test_a_target_without_plugins_is_a_problem(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "problem" == next(iter((await findings(plugins=target)).values())).status


async def test_mcp_servers_are_connected_and_one_that_is_not_says_how_to_look_further() -> None:
    servers = (
        McpServer(name="raw", command=sys.executable, args=(str(RAW_SERVER), "schemas")),
        McpServer(name="dead", command=sys.executable, args=("-c", "")),
        McpServer(name="off", command="none", disabled=True),
    )
    found = await findings(servers=lambda: servers)
    assert "ok" == found["mcp:raw"].status
    assert found["mcp:raw"].seen.startswith("It connects, and lists ")
    assert ("problem", "Try patchbay mcp test dead.") == (found["mcp:dead"].status, found["mcp:dead"].advice)
    assert "skipped" == found["mcp:off"].status
    assert "ok" == found["tool_schemas"].status


async def test_a_store_that_can_be_written_to_is_right_and_one_that_is_missing_is_not_created(tmp_path: Path) -> None:
    file = tmp_path / "tools.db"
    missing = await findings(store=f"sqlite:///{file}")
    assert f"{file} does not exist yet, and can be created." == missing["store"].seen
    assert not file.exists()
    store = RegistrationStore(file)
    await store.save(ToolRegistry())
    await store.load()
    await store.database.close()
    found = await findings(store=f"sqlite:///{file}")
    assert f"sqlite:///{file} can be written to, and has 0 registrations." == found["store"].seen
    assert "ok" == found["store"].status


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://db/tools", "not mysql://"),
        ("sqlite:////nowhere/tools.db", "cannot be created"),
        ("postgresql://user:secret-password@127.0.0.1:1/tools", "refused"),
    ],
)
async def test_a_store_that_cannot_be_used_is_a_problem_without_its_password(url: str, words: str) -> None:
    found = (await findings(store=url))["store"]
    assert "problem" == found.status
    assert words in found.seen
    assert "secret-password" not in found.seen + found.advice


async def test_a_file_that_is_no_database_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "tools.db"
    file.write_bytes(b"this is no database, but a text of some length")
    found = (await findings(store=str(file)))["store"]
    assert "problem" == found.status
    assert f"The database {file} cannot be opened: file is not a database." in found.seen


async def test_a_required_package_that_is_missing_or_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["msgspec>=999.0", "no-such-package-of-ours>=1.0", "mcp>=999; extra == 'mcp'"]
    monkeypatch.setattr(local.importlib.metadata, "requires", lambda _name: required)
    _, packages = [each async for each in check_local(LocalSettings())]
    assert "problem" == packages.status
    assert "msgspec " in packages.seen
    assert "no-such-package-of-ours is missing (at least 1.0)" in packages.seen
