"""Rules on the arguments of calls: what a condition holds for, what it cannot tell, and which conditions are refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from patchbay.approvals import Rule, parse_policy
from patchbay.approvals.conditions import read_conditions
from patchbay.errors import ConfigurationError
from patchbay.hooks import ToolRequest
from support.tables import rows

from .approval_calls import Files, ask, call_of, executor_of, running_calls, service_at, tool_request

TEXT: dict[str, Any] = {"type": "string"}


def request(properties: dict[str, Any] | None = None, /, **arguments: Any) -> ToolRequest:
    """Return a call of a tool that has these arguments, and ``properties`` besides."""
    schema = {"type": "object", "properties": {**{name: {} for name in arguments}, **(properties or {})}}
    return tool_request(arguments=arguments, parameters=schema)


def condition_holds(when: Any, call: ToolRequest) -> bool | None:
    """Return whether a rule's conditions hold; None where a rule that denies fits, and one that allows does not."""
    denies, allows = (Rule(outcome=outcome, when=when).matches(call) for outcome in ("deny", "allow"))
    assert not allows or denies
    return allows if allows == denies else None


@pytest.mark.parametrize(
    ("wanted", "holds", "fails"),
    [
        *rows(__file__, "conditions.jsonl"),
        ({"gt": 100}, [101, 100.5, 10**400], [100, -5, 99.9]),
        ("~/.ssh/*", ["~/.ssh/id", f"{Path.home()}/.ssh/id"], ["~/a", ".ssh/id"]),
    ],
)
def test_condition_has_its_expected_result(wanted, holds, fails):
    when = {"value": wanted}
    assert [True] * len(holds) == [condition_holds(when, request(value=each)) for each in holds]
    assert [False] * len(fails) == [condition_holds(when, request(value=each)) for each in fails]


@pytest.mark.parametrize(
    ("wanted", "value"),
    [*rows(__file__, "undecidable.jsonl"), ({"regex": "x"}, "\ud800x"), ({"gt": 100}, float("nan")), ("1*", 10**120)],
)
def test_condition_on_a_value_of_another_type_is_undecidable(wanted, value):
    assert condition_holds({"value": wanted}, request(value=value)) is None


DENY_ETC = parse_policy({"rules": [{"when": {"path": "/etc/*"}, "outcome": "deny"}]})
ALLOW_TMP = parse_policy({"default": "deny", "rules": [{"when": {"path": "/tmp/*"}, "outcome": "allow"}]})
ALIASES = ["/proc/self/root/", "/proc/1/task/1/root/", "/proc/thread-self/cwd/../"]


@pytest.mark.parametrize(
    "path", [*rows(__file__, "path_forms.jsonl"), "../" * 20 + "etc/x", *(f"{alias}etc/x" for alias in ALIASES)]
)
def test_no_form_of_a_path_passes_a_denying_rule_or_another_allowing_one(path):
    call = request({"path": TEXT}, path=path)
    assert "allow" not in (DENY_ETC.rule_for(call).outcome, ALLOW_TMP.rule_for(call).outcome)


@st.composite
def spelled(draw: st.DrawFn, folder: str) -> str:
    """Draw a form in which a tool may accept a path in this folder."""
    names = st.text(
        st.characters(codec="utf-8", exclude_characters="/\\\0?#%$`*[{", exclude_categories=["Zs", "Zl", "Zp", "Cc"]), min_size=1
    )
    names = names.filter(lambda name: name.strip(".") and not name.startswith("~"))
    path = "/".join([folder, *draw(st.lists(names, max_size=3))])
    for step in draw(st.lists(st.sampled_from(["dots", "slashes", "encoded", "backslashes", "end"]), max_size=4)):
        at = draw(st.sampled_from([n for n, each in enumerate(path) if each in "/\\"] or [0]))
        match step:
            case "dots" | "slashes":
                detour = "/" if step == "slashes" else draw(st.sampled_from(["/.", f"/{draw(names)}/..", "/tmp/..", "/etc/.."]))
                path = f"{path[:at]}{detour}{path[at:]}"
            case "encoded":
                chosen = draw(st.sets(st.sampled_from(path)))
                path = "".join("".join(f"%{byte:02x}" for byte in each.encode()) if each in chosen else each for each in path)
            case "backslashes":
                path = path.replace("/", "\\")
            case "end":
                path += draw(st.sampled_from(["/", "//", "/."]))
    scheme = draw(st.sampled_from(["", "file:", "file://", "File://localhost", "file:///", "C:", "../" * 30]))
    return (
        draw(st.sampled_from(["", " ", "\t", "\n", "\xa0", '"', "\ufeff"]))
        + scheme
        + path
        + draw(st.sampled_from(["", " ", "\r\n"]))
    )


@given(spelled("/etc"))
@example("/etc")
def test_no_form_of_a_path_passes_a_rule_that_denies_its_folder(path):
    assert "allow" != DENY_ETC.rule_for(request({"path": TEXT}, path=path)).outcome


@given(st.sampled_from(["/etc", "/tmpx", "/home/tmp"]).flatmap(spelled))
def test_no_form_of_another_path_passes_a_rule_that_allows_a_folder(path):
    assert "deny" == ALLOW_TMP.rule_for(request({"path": TEXT}, path=path)).outcome


@pytest.mark.parametrize("path", ["/ETC/x", "/Etc", "/e\u0301tc"])
def test_case_of_a_path_is_ignored_where_the_file_system_ignores_it(path, monkeypatch):
    monkeypatch.setattr("patchbay.approvals.paths._IGNORES_CASE", True)
    policy = parse_policy({"rules": [{"when": {"path": pattern}, "outcome": "deny"} for pattern in ("/etc/*", "/\xe9TC")]})
    assert "deny" == policy.rule_for(request({"path": TEXT}, path=path)).outcome


def test_undecidable_rule_that_denies_asks_a_person_about_this_call_alone():
    given = {"outcome": "deny", "session": "tool", "at_deadline": "allow", "when": {"path": "/etc/*"}}
    rule = parse_policy({"rules": [given]}).rule_for(request({"path": TEXT}))
    assert ("ask", "deny", "call") == (rule.outcome, rule.at_deadline, rule.session)
    certain = parse_policy({"rules": [given, {"outcome": "deny"}]}).rule_for(request({"path": TEXT}))
    assert ("deny", "2") == (certain.outcome, certain.name)


@pytest.mark.parametrize(("when", "schema", "arguments", "holds"), rows(__file__, "arguments.jsonl"))
def test_conditions_hold_or_are_undecidable_for_the_arguments_of_a_call(when, schema, arguments, holds):
    assert holds is condition_holds(when, request(schema, **arguments))


def test_conditions_on_invalid_json_arguments_are_undecidable():
    schema = {"properties": {"path": TEXT}}
    condition = read_conditions({"path": {"glob": "/etc/*", "missing": False}})[0]
    assert ({None}, {False}) == (condition.results({"_raw": "{path: /etc/x"}, schema), condition.results({}, schema))


@pytest.mark.parametrize(
    ("path", "outcome"), [("/tmp/a", "allow"), ("/etc/a", "ask"), ("/tmp/../etc/a", "deny"), ("/srv/a", "deny"), (None, "deny")]
)
def test_undecidable_rule_does_not_precede_stricter_ones(path, outcome):
    policy = {
        "default": "deny",
        "rules": [
            {"when": {"path": "/tmp/*"}, "outcome": "allow"},
            {"when": {"path": "/etc/*"}, "outcome": "ask"},
        ],
    }
    assert outcome == parse_policy(policy).rule_for(request(path=path)).outcome


@pytest.mark.parametrize(
    ("when", "words"),
    [
        *rows(__file__, "condition_mistakes.jsonl"),
        ({"path": {"gt": float("nan")}}, "when.path.gt must be a number or a string, not nan"),
    ],
)
def test_a_condition_that_cannot_work_is_refused_with_its_place(when, words):
    with pytest.raises(ConfigurationError) as refused:
        parse_policy({"rules": [{"name": "etc", "when": when, "outcome": "ask"}]})
    assert str(refused.value).startswith("approvals, rule 'etc': when")
    assert words in str(refused.value)


@pytest.mark.parametrize("pattern", [r"(a|a)*$x", r"(a+a+)+x", r"(.*)*x", r"a?" * 50 + "x" * 50])
def test_regular_expressions_take_linear_time(pattern):
    """Counted in CPU time against ten times as long a text: these take longer than the universe has with backtracking."""
    rule = Rule(outcome="deny", when={"value": {"regex": pattern}})

    def took(size: int) -> float:
        call = request(value="a" * size)
        call.arguments, call.parameters  # noqa: B018  (copied when it is first looked at)
        began = time.process_time()
        rule.matches(call)
        return time.process_time() - began

    took(10)
    assert took(200_000) < 1000 * max(min(took(20_000) for _ in range(3)), 1e-4)


async def test_only_calls_with_matching_arguments_need_approval():
    files = Files()
    rules = {"rules": [{"tools": ["delete"], "when": {"path": "/etc/*"}, "outcome": "ask"}]}
    async with service_at(policy=parse_policy(rules)) as service:
        executor = executor_of(service, files)
        assert ["deleted /tmp/a"] == [each.content for each in await running_calls(executor, call_of("/tmp/a"))]
        held, request = await ask(service, call_of("/etc/a"), executor=executor)
        assert ("/tmp/a", '{"path": "/etc/a"}') == (*files.deleted, request.arguments)
        await service.decide(request.id, "deny")
        assert ["tool_denied"] == [each.result.code for each in await held]
        assert ["/tmp/a"] == files.deleted


def test_schema_reference_may_declare_a_nested_argument():
    assert condition_holds({"options.mode": "x"}, request({"options": {"$ref": "#/$defs/Options"}}, options={})) is None
    assert condition_holds({"options.mode": "x"}, request({"options": {"properties": {}}}, options={})) is False
