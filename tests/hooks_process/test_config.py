"""Hooks of a configuration, and errors in it: spec/hooks.md, section 1, and the policies P4, P11 and P12."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from patchbay.errors import ConfigurationError
from patchbay.hooks import HookPolicy, HookTimeouts
from patchbay.hooks.config import BuiltinSpec, HooksConfig, parse_hooks_config, read_hooks_config
from support.tables import rows

COMMAND = ["python3", "/tmp/weather_plugin.py"]


def parsed(**hooks):
    return parse_hooks_config({"hooks": hooks})


def process(**members):
    """Return the settings of one process with these members."""
    entry = {"enabled": True, "command": COMMAND, "intercept": ["before_tool"], **members}
    return parsed(processes={"h": entry}).processes[0]


SEED = {
    "hooks": {
        "enabled": True,
        "processes": {
            "weather_plugin": {
                "enabled": True,
                "priority": 100,
                "transport": "stdio",
                "command": COMMAND,
                "intercept": ["before_llm", "before_tool"],
            }
        },
    }
}


def test_the_seeds_example_is_read():
    config = parse_hooks_config(SEED)
    (settings,) = config.processes
    assert (True, ()) == (config.enabled, config.notes)
    assert ("weather_plugin", tuple(COMMAND), frozenset({"llm", "tool"})) == (
        settings.spec.name,
        settings.spec.command,
        settings.spec.modes,
    )
    assert (100, False, HookTimeouts()) == (settings.priority, settings.required, settings.timeouts)
    assert (None, {}, None) == (settings.spec.folder, settings.spec.env, settings.spec.inherit)


@pytest.mark.parametrize("config", [{}, None, {"hooks": {}}, {"hooks": None}, {"agents": {"x": 1}}])
def test_missing_configuration_is_enabled_and_empty(config):
    assert HooksConfig(enabled=True, timeouts=HookTimeouts(), policy=HookPolicy()) == parse_hooks_config(config)


def test_disabled_hooks_are_not_validated():
    config = parsed(processes={"a": {"transport": 1}, "b": {"enabled": False, "command": 7}}, builtins={"c": {"priority": []}})
    assert ((), (), ("c", "a", "b")) == (config.processes, config.builtins, config.disabled)


@pytest.mark.parametrize(
    ("intercept", "modes"),
    [
        (["before_llm"], {"llm"}),
        (["after_llm", "before_llm"], {"llm"}),
        (["after_tool"], {"tool"}),
        (["approve_tool"], {"approve"}),
        (["", "before_tool"], {"tool"}),
    ],
)
def test_intercept_lists_the_points_of_a_hook(intercept, modes):
    assert modes == process(intercept=intercept).spec.modes


@pytest.mark.parametrize(
    ("observe", "kinds"),
    [
        (["turn_start", "agent.error", "mcp.tool.call.start"], {"agent.turn.start", "agent.error", "mcp.tool.call.start"}),
        (["subturn_result_delivered", "follow_up_queued"], {"agent.subturn.result_delivered", "agent.follow_up.queued"}),
        *((names, None) for names in (["*"], ["all"], [""], ["turn_start", "*"], ["*", "nonsense"])),
    ],
)
def test_observe_setting_makes_an_observer(observe, kinds):
    spec = process(intercept=[], observe=observe).spec
    assert ({"observe"}, kinds) == (spec.modes, spec.kinds)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        *rows(__file__, "process_mistakes.jsonl"),
        ({"env": {False: "x"}}, "hooks.processes.h.env has the key False, which is not a string: put it in quotes"),
        ({"timeout_ms": 10**400}, "hooks.processes.h.timeout_ms must be a number of milliseconds"),
        ({"timeout_ms": float("inf")}, "hooks.processes.h.timeout_ms must be a number of milliseconds"),
    ],
)
def test_a_mistake_is_refused_with_its_place(members, words):
    with pytest.raises(ConfigurationError) as caught:
        process(**members)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        *rows(__file__, "hooks_mistakes.jsonl"),
        ({"processes": {False: {}}}, "hooks.processes has the key False, which is not a string: put it in quotes"),
    ],
)
def test_a_mistake_above_is_refused_with_its_place(hooks, words):
    with pytest.raises(ConfigurationError) as caught:
        parse_hooks_config({"hooks": hooks})
    assert str(caught.value).startswith(words)


def test_times_are_milliseconds_and_nothing_or_less_is_the_default():
    defaults = {"observer_timeout_ms": 100, "interceptor_timeout_ms": 0, "approval_timeout_ms": -1, "tool_timeout_ms": 20_000}
    assert HookTimeouts(0.1, 5.0, 60.0, 20.0) == parsed(defaults=defaults).timeouts


def test_hook_timeouts_override_the_defaults():
    entry = {"enabled": True, "command": COMMAND, "intercept": ["before_tool"], "timeout_ms": 250, "tool_timeout_ms": 90_000}
    config = parsed(defaults={"approval_timeout_ms": 1000}, processes={"h": entry})
    assert HookTimeouts(0.5, 0.25, 1.0, 90.0) == config.processes[0].timeouts
    assert HookTimeouts(0.5, 5.0, 1.0) == config.timeouts


def test_approver_is_required_by_default():
    assert not process().required
    assert process(intercept=["approve_tool", "before_tool"]).required
    assert not process(intercept=["approve_tool"], required=False).required
    assert process(required=True).required


def test_the_rest_of_a_process_is_read():
    settings = process(
        dir="/var/x", env={"A": "1"}, inherit_env=["PATH"], strict=True, flat_context=True, max_line_bytes=4096,
        hello_timeout_ms=100, max_restarts=2, priority=-5.0,
    )  # fmt: skip
    spec = settings.spec
    assert (Path("/var/x"), {"A": "1"}, ("PATH",), True, True) == (
        spec.folder,
        spec.env,
        spec.inherit,
        spec.strict,
        spec.flat_context,
    )
    assert (4096, 0.1, 2, -5) == (spec.limits.line, spec.limits.hello, spec.limits.restarts, settings.priority)
    assert 0 == process(restart=False, max_restarts=9).spec.limits.restarts
    assert 5 == process(restart=True).spec.limits.restarts


def test_a_policy_is_read():
    policy = {"tool_injection": "off", "respond_approval": "never", "protected": ["rm", "fs_*"], "edit_system": True}
    expected = HookPolicy("off", "never", frozenset({"rm", "fs_*"}), edit_system=True)
    assert expected == parsed(policy=policy).policy


def test_a_builtin_has_its_config_as_it_is():
    config = parsed(builtins={"audit": {"enabled": True, "priority": 3, "config": [1, {"x": None}], "timeout_ms": 100}})
    expected = BuiltinSpec(name="audit", config=[1, {"x": None}], priority=3, timeouts=HookTimeouts(interceptor=0.1))
    assert (expected,) == config.builtins


def test_unknown_keys_are_skipped_with_a_note():
    entry = {"enabled": True, "command": COMMAND, "intercept": ["before_tool"], "timout_ms": 1, "vendor": {}}
    notes = parsed(processes={"h": entry}, polices={}, defaults={"x": 1}).notes
    assert (
        "hooks.polices is not known, and is passed over: is 'policy' meant?",
        "hooks.defaults.x is not known, and is passed over",
        "hooks.processes.h.timout_ms is not known, and is passed over: is 'timeout_ms' meant?",
        "hooks.processes.h.vendor is not known, and is passed over",
    ) == notes


YAML = """
hooks:
  enabled: true
  processes:
    weather_plugin:
      enabled: true
      priority: 100
      transport: stdio
      command: [python3, /tmp/weather_plugin.py]
      intercept: [before_llm, before_tool]
"""
TOML = """
[hooks]
enabled = true

[hooks.processes.weather_plugin]
enabled = true
priority = 100
transport = "stdio"
command = ["python3", "/tmp/weather_plugin.py"]
intercept = ["before_llm", "before_tool"]
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", json.dumps(SEED)),
        ("a.JSON", "\ufeff" + json.dumps(SEED)),
        ("a.yaml", YAML),
        ("a.yml", YAML),
        ("a.toml", TOML),
    ],
)
def test_json_yaml_and_toml_are_equivalent(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert parse_hooks_config(SEED) == read_hooks_config(path)


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.toml"])
def test_empty_file_is_an_empty_configuration(tmp_path, name):
    (tmp_path / name).write_text("")
    assert () == read_hooks_config(tmp_path / name).processes


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"{", "this is not JSON"),
        ("a.yaml", b"a: [", "this is not YAML"),
        ("a.yaml", b"a: !!python/object/apply:os.system [ls]", "this is not YAML"),
        ("a.toml", b"a = ", "this is not TOML"),
        ("a.json", b'{"a": "\xff"}', "the file is not UTF-8"),
        ("a.ini", b"", "unknown file type: the name must end with one of .json, .yaml, .yml, .toml"),
        ("a", b"", "unknown file type: the name must end with one of"),
        ("a.json", b'{"hooks": 1}', "hooks must be an object, not 1"),
        ("a.json", b"[]", "the configuration must be an object, not a list"),
    ],
)
def test_config_file_errors_start_with_the_file_name(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_hooks_config(path)
    assert str(caught.value).startswith(f"{path}: {words}")
    assert 1 == str(caught.value).count(str(path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '{"hooks": {"processes": {"x": {}, "y": {}, "x": {}}}}'),
        ("a.yaml", "hooks:\n  processes:\n    x: {}\n    y: {}\n    x: {}\n"),
    ],
)
def test_duplicate_key_in_a_config_file_is_rejected(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigurationError, match="the key 'x' stands twice in one object"):
        read_hooks_config(path)


def test_yaml_merge_keys_can_be_overridden(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "base: &base {enabled: true, command: [x], intercept: [before_tool], priority: 1}\n"
        "hooks:\n  processes:\n    a: &a {<<: *base, priority: 2}\n    b: {<<: *a, priority: 3}\n"
        "other: {<<: *a}\n"
    )
    assert [2, 3] == [each.priority for each in read_hooks_config(path).processes]


@pytest.mark.parametrize(("name", "content"), rows(__file__, "secrets.jsonl"))
def test_config_file_errors_do_not_contain_secrets(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        read_hooks_config(path)
    assert "sk-123" not in str(caught.value)


def test_secrets_are_hidden_in_settings():
    entry = {"enabled": True, "config": {"token": "sk-123"}}
    config = parsed(
        builtins={"b": entry},
        processes={"h": {"enabled": True, "command": ["x"], "intercept": ["before_tool"], "env": {"T": "sk-123"}}},
    )
    assert ("sk-123", "sk-123") == (config.processes[0].spec.env["T"], config.builtins[0].config["token"])
    assert "sk-123" not in repr(config)


def test_missing_config_file_is_an_error(tmp_path):
    with pytest.raises(ConfigurationError, match=r"nothing\.json: No such file"):
        read_hooks_config(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("members", "required"), [({}, False), ({"fail_closed": True}, True), ({"fail_closed": True, "required": True}, True)]
)
def test_fail_closed_hook_is_required(members, required):
    """One that was left out would let through what it was to hold."""
    settings = process(**members)
    assert (required, bool(members)) == (settings.required, settings.spec.fail_closed)
