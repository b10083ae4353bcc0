"""Rule selection for a call, and errors of policy files."""

from __future__ import annotations

import json

import pytest

from patchbay.approvals import Rule, parse_policy, read_policy
from patchbay.errors import ConfigurationError
from patchbay.hooks import HookPolicy, Meta, ToolRequest
from support.tables import rows

from .approval_calls import tool_request


def request(tool="delete", *, source="", annotations=None, agent="helper", context=None) -> ToolRequest:
    meta = Meta(agent_id=agent)
    return tool_request(tool=tool, source=source, annotations=annotations or {}, meta=meta, context=context or {})


def outcome(policy, **about) -> str:
    return parse_policy(policy).rule_for(request(**about)).outcome


def test_the_first_rule_that_fits_decides_and_the_default_where_none_does():
    policy = {
        "default": "ask",
        "rules": [
            {"tools": ["delete_tmp"], "outcome": "allow"},
            {"tools": ["delete_*", "drop"], "outcome": "deny"},
            {"tools": ["delete_tmp"], "outcome": "ask"},
        ],
    }
    assert ["allow", "deny", "deny", "ask"] == [
        outcome(policy, tool=tool) for tool in ("delete_tmp", "delete_all", "drop", "delete")
    ]


def test_rule_matches_if_all_its_conditions_do():
    rule = {"tools": ["d*"], "sources": ["plugin:*", ""], "agents": ["help*"], "roles": ["ann"], "outcome": "deny"}
    ann = {"scope": {"role": "ann"}}
    assert "deny" == outcome({"rules": [rule]}, context=ann)
    assert "deny" == outcome({"rules": [rule]}, context=ann, source="plugin:x")
    for other in ({"tool": "x"}, {"source": "hook:x"}, {"agent": "boss"}, {"context": {"scope": {"role": "ben"}}}):
        assert "allow" == outcome({"rules": [rule]}, **{"context": ann, **other})


def test_role_defaults_to_the_agent():
    rule = {"roles": ["ann"], "outcome": "deny"}
    assert ["deny", "allow"] == [outcome({"rules": [rule]}, agent=agent) for agent in ("ann", "ben")]
    assert "deny" == outcome({"rules": [rule]}, agent="ann", context={"scope": "ben"})


@pytest.mark.parametrize("annotations", [{"destructive": True}, {"destructiveHint": True}, {"destructive": "yes"}])
def test_annotations_are_read_under_our_names_and_mcp_names(annotations):
    policy = {"rules": [{"annotations": ["destructive"], "outcome": "deny"}]}
    assert "deny" == outcome(policy, annotations=annotations)
    assert "allow" == outcome(policy, annotations={"destructive": False})
    assert "allow" == outcome(policy)


def test_missing_annotation_counts_as_false():
    policy = {"rules": [{"annotations": {"read_only": False}, "outcome": "ask"}]}
    assert ["ask", "ask", "allow"] == [
        outcome(policy, annotations={"read_only": text} if text is not None else {}) for text in (None, False, True)
    ]


def test_remote_tools_own_annotations_do_not_avoid_an_approval():
    allow = {"default": "ask", "rules": [{"annotations": ["read_only"], "outcome": "allow"}]}
    ask = {"rules": [{"annotations": ["!read_only"], "outcome": "ask"}]}
    claim = {"annotations": {"read_only": True}, "source": "plugin:x"}
    assert ["ask", "ask"] == [outcome(policy, **claim) for policy in (allow, ask)]
    for policy in (allow, ask):
        policy["rules"][0]["sources"] = ["plugin:*"]  # the word of these is taken
    assert ["allow", "allow"] == [outcome(policy, **claim) for policy in (allow, ask)]


@pytest.mark.parametrize(
    "milder",
    [
        {"annotations": ["safe"], "outcome": "allow"},
        {"annotations": ["!destructive"], "outcome": "allow"},
        {"annotations": ["safe"], "outcome": "ask", "at_deadline": "allow"},
        {"annotations": ["safe", "!destructive"], "outcome": "ask"},
        {"annotations": {"risk": "low"}, "outcome": "ask"},
    ],
)
def test_rule_matched_by_a_remote_tools_annotations_does_not_override_stricter_rules(milder):
    claim = {"annotations": {"safe": True, "risk": "low"}, "source": "plugin:x"}
    policy = {"default": "deny", "rules": [milder]}
    assert "deny" == outcome(policy, **claim)
    assert milder["outcome"] == outcome(policy, **{**claim, "source": ""})
    policy = {"default": "allow", "rules": [milder, {"sources": ["plugin:*"], "outcome": "deny"}, {"outcome": "allow"}]}
    assert "deny" == outcome(policy, **claim)


def test_remote_tools_annotations_cannot_turn_a_denial_into_an_approval_request():
    rules = [{"annotations": ["destructive"], "outcome": "ask"}, {"annotations": ["financial"], "outcome": "deny"}]
    claim = {"annotations": {"destructive": True, "financial": True}}
    assert ["ask", "deny"] == [outcome({"rules": rules}, **claim, source=source) for source in ("", "plugin:x")]


def test_policy_settings_are_defaults_of_its_rules():
    policy = parse_policy(
        {
            "deadline": 60,
            "at_deadline": "allow",
            "who": ["http"],
            "session": "call",
            "reason": "why",
            "rules": [{"outcome": "ask"}, {"outcome": "ask", "deadline": 7, "who": ["hooks"]}],
        }
    )
    first, second = policy.rules
    assert (60, "allow", ("http",), "call", "why") == (first.deadline, first.at_deadline, first.who, first.session, first.reason)
    assert (7, ("hooks",), "allow") == (second.deadline, second.who, second.at_deadline)
    assert (60, 60) == (policy.otherwise.deadline, policy.longest)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        *rows(__file__, "policy_mistakes.jsonl"),
        ({"rules": [{"outcome": "ask", "deadline": float("inf")}]}, "deadline must be a number"),
    ],
)
def test_invalid_policy_is_refused_with_its_location(policy, words):
    with pytest.raises(ConfigurationError, match=words):
        parse_policy(policy)


def test_policy_limits_which_calls_hooks_may_approve():
    policy = parse_policy({"respond_approval": "always", "protected": ["fs_*"]})
    hooks = policy.apply_to(HookPolicy(protected=frozenset({"mail"}), edit_system=True))
    assert HookPolicy(respond_approval="always", protected=frozenset({"mail", "fs_*"}), edit_system=True) == hooks
    assert HookPolicy() == parse_policy({}).apply_to(HookPolicy())


TOML = """
[approvals]
deadline = 60

[[approvals.rules]]
tools = ["delete"]
outcome = "ask"
annotations = ["destructive"]
"""
YAML = """
approvals:
  deadline: 60
  rules:
    - tools: [delete]
      outcome: ask
      annotations: [destructive]
"""
DATA = {"deadline": 60, "rules": [{"tools": ["delete"], "outcome": "ask", "annotations": {"destructive": True}}]}


def test_policy_is_equal_in_every_file_format(tmp_path):
    texts = {
        "a.toml": TOML,
        "b.toml": TOML.replace("[approvals]\n", "").replace("approvals.", ""),
        "c.yaml": YAML,
        "d.json": json.dumps({"hooks": {"enabled": True}, "approvals": DATA}),
        "e.json": json.dumps(DATA),
    }
    found = []
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        found.append(read_policy(tmp_path / name))
    assert [parse_policy(DATA)] * len(texts) == found


def test_configuration_without_approvals_is_the_empty_policy(tmp_path):
    (tmp_path / "a.json").write_text('{"hooks": {"enabled": true}}', encoding="utf-8")
    assert parse_policy({}) == read_policy(tmp_path / "a.json")


def test_policy_errors_name_the_file(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text("rules = 1", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"policy\.toml: approvals\.rules must be"):
        read_policy(path)
    with pytest.raises(ConfigurationError, match="No such file"):
        read_policy(tmp_path / "none.toml")


def test_a_rule_in_code_is_checked_as_one_in_a_file():
    with pytest.raises(ConfigurationError, match="tools must be a list of strings"):
        Rule(tools="delete")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="outcome is 'no'"):
        Rule(outcome="no")  # type: ignore[arg-type]


def test_the_policy_and_the_keys_of_the_documentation_are_real(tmp_path):
    import dataclasses
    import re
    from pathlib import Path

    page = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "approvals.md").read_text(encoding="utf-8")
    policy = page[page.index("## The policy") :]
    (tmp_path / "policy.toml").write_text(re.search(r"```toml\n(.*?)```", policy, re.DOTALL)[1], encoding="utf-8")
    assert ["allow", "ask", "ask", "deny"] == [rule.outcome for rule in read_policy(tmp_path / "policy.toml").rules]
    (tmp_path / "conditions.toml").write_text(re.search(r"```toml conditions\n(.*?)```", page, re.DOTALL)[1], encoding="utf-8")
    assert [["path"], ["amount", "to.country"]] == [[*rule.when] for rule in read_policy(tmp_path / "conditions.toml").rules]
    table = page[page.index("| a rule's key |") :].partition("\n\n")[0].splitlines()[2:]
    listed = {name for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert {each.name for each in dataclasses.fields(Rule) if each.init} == listed
