"""Rule selection for a call, and errors of policy files."""

from __future__ import annotations

import json

import pytest

from patchbay.approvals import Rule, parse_policy, read_policy
from patchbay.errors import ConfigurationError
from patchbay.hooks import HookPolicy, Meta
from support.tables import rows

from .approval_calls import tool_request


@pytest.mark.parametrize("row", rows(__file__, "policies.jsonl"), ids=lambda row: row["about"])
def test_policy_decides_about_a_call(row):
    call = {"tool": "delete", "context": {}, **row["call"]}
    request = tool_request(meta=Meta(agent_id=call.pop("agent", "helper")), **call)
    assert row["outcome"] == parse_policy(row["policy"]).rule_for(request).outcome


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
