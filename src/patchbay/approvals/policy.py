"""Approval policies: ordered rules that allow, deny or ask about a tool call, and the policy file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from patchbay._config import Table, read_config, wrong
from patchbay.approvals.conditions import Condition, Results, both, read_conditions
from patchbay.approvals.notify import NotifySettings, read_notify
from patchbay.errors import ConfigurationError
from patchbay.hooks import HookPolicy, ToolRequest
from patchbay.tools.tool import normalized_annotations

Outcome: TypeAlias = Literal["allow", "deny", "ask"]
AtDeadline: TypeAlias = Literal["deny", "allow"]
Session: TypeAlias = Literal["tool", "call", "never"]
Who: TypeAlias = Literal["hooks", "terminal", "http", "mcp"]

DEADLINE: Final = 300.0
"""Default seconds to decide a request."""

LONGEST_DEADLINE: Final = 7 * 24 * 3600.0
PEOPLE: Final[tuple[Who, ...]] = ("terminal", "http")
"""Channels that decide by default."""

_HUMAN: Final = frozenset({*PEOPLE, "mcp"})

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
_PATTERNS: Final = ("tools", "sources", "agents", "roles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An outcome for the calls that match all of its criteria; a criterion that is not given matches every call.

    ``tools``, ``sources``, ``agents`` and ``roles`` are patterns (``fs_*``), one of which must match: the tool's name, its source
    ("" for this program's own tools), the agent's id, and the role of the turn. ``annotations`` are required annotations of the
    tool (``{"destructive": True}``); a missing one counts as false. Annotations of a tool with a source are untrusted: they can
    make a rule ask or deny, but not spare the call from one (``ApprovalPolicy.rule_for``), unless the rule names ``sources``.

    ``when`` has conditions on arguments, all of which must hold: ``{"path": "/etc/*", "amount": {"gt": 100}}``
    (docs/guides/approvals.md). One that may hold (a path that tools read in several ways) holds where the rule asks or denies,
    and does not where it allows. With an undecidable one (no value, or a value of another type) a rule that denies asks, and one
    that allows does not match.

    ``outcome`` is "allow", "deny" (``reason`` is sent to the model) or "ask". ``who`` decides: "terminal" and "http" are people,
    "mcp" is the user of the MCP client that calls, and the first decision counts; "hooks" requires another approve hook, alone or
    besides people. After ``deadline`` seconds the call is denied, or runs if ``at_deadline`` is "allow". ``session`` is the scope
    of a session approval: every call of the "tool", this "call" with these arguments, or "never". Raises ConfigurationError.
    """

    name: str = ""
    tools: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    annotations: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    when: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    outcome: Outcome = "ask"
    reason: str = ""
    who: tuple[Who, ...] = PEOPLE
    deadline: float = DEADLINE
    at_deadline: AtDeadline = "deny"
    session: Session = "tool"
    _conditions: tuple[Condition, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        place = f"approvals, rule {self.name!r}: " if self.name else "approvals: "
        for name in (*_PATTERNS, "who"):
            patterns = getattr(self, name)
            if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
                raise ConfigurationError(f"{place}{name} must be a list of strings, not {patterns!r}.")
            object.__setattr__(self, name, tuple(patterns))
        for name, kind in (("outcome", Outcome), ("at_deadline", AtDeadline), ("session", Session)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise ConfigurationError(f"{place}{name} is {value!r}: use one of {', '.join(get_args(kind))}.")
        if not self.who or not set(self.who) <= set(get_args(Who)):
            raise ConfigurationError(f"{place}who must name some of {', '.join(get_args(Who))}, not {list(self.who)!r}.")
        if not isinstance(self.annotations, Mapping):
            raise ConfigurationError(f"{place}annotations must be an object, not {self.annotations!r}.")
        object.__setattr__(self, "annotations", MappingProxyType(normalized_annotations(self.annotations)))
        try:
            object.__setattr__(self, "_conditions", read_conditions(self.when))
        except ConfigurationError as error:
            raise ConfigurationError(f"{place}{error}") from None
        object.__setattr__(self, "when", MappingProxyType(dict(self.when)))
        is_number = isinstance(self.deadline, int | float) and not isinstance(self.deadline, bool)
        if not is_number or not math.isfinite(self.deadline) or not 0 < self.deadline <= LONGEST_DEADLINE:
            raise ConfigurationError(
                f"{place}deadline must be a number of seconds above 0, and at most a week, not {self.deadline!r}."
            )

    @property
    def strictness(self) -> int:
        """Rank of the rule, from 0 (allow) to 3 (deny)."""
        if self.outcome == "ask":
            return 1 if self.at_deadline == "allow" else 2
        return 0 if self.outcome == "allow" else 3

    @property
    def asks_people(self) -> bool:
        """True if a person is asked."""
        return self.outcome == "ask" and not _HUMAN.isdisjoint(self.who)

    def matches(self, call: ToolRequest) -> bool:
        """Return whether the rule applies to the call."""
        return (
            _matches(self.tools, call.tool)
            and _matches(self.sources, call.source)
            and (not self.agents or _matches(self.agents, call.meta.agent_id))
            and (not self.roles or _matches(self.roles, role_of(call) or call.meta.agent_id))
            and (not self.annotations or self._matches_annotations(call))
            and (self._results(call) == {True} if self.outcome == "allow" else self._results(call) != {False})
        )

    def is_certain(self, call: ToolRequest) -> bool:
        """Return whether a rule that matches does so without untrusted annotations and undecidable conditions."""
        return (not self.annotations or self._trusts(call)) and self._results(call) == {True}

    def for_call(self, call: ToolRequest) -> Rule:
        """Return the rule as it applies to a call that it matches: one that denies asks where that is undecidable."""
        if self.outcome != "deny" or True in self._results(call):
            return self
        return replace(self, outcome="ask", at_deadline="deny", session="never" if self.session == "never" else "call")

    def _trusts(self, call: ToolRequest) -> bool:
        return not call.source or bool(self.sources)

    def _results(self, call: ToolRequest) -> Results:
        each = (condition.results(call.arguments, call.parameters) for condition in self._conditions)
        return reduce(both, each, {True})

    def _matches_annotations(self, call: ToolRequest) -> bool:
        trusted = self._trusts(call)
        annotations = normalized_annotations(call.annotations)
        return all(
            (not trusted and wanted is False)
            or (bool(annotations.get(name)) is wanted if isinstance(wanted, bool) else annotations.get(name) == wanted)
            for name, wanted in self.annotations.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Ordered rules, and ``otherwise`` for calls that no rule matches.

    ``respond_approval`` and ``protected`` override those of a HookPolicy. ``notify`` is where a note goes for each request that
    begins to wait. Raises ConfigurationError.
    """

    rules: Sequence[Rule] = ()
    otherwise: Rule = field(default_factory=lambda: Rule(name="default", outcome="allow"))
    respond_approval: str | None = None
    protected: frozenset[str] = frozenset()
    notify: NotifySettings | None = field(default=None, compare=False)

    def rule_for(self, call: ToolRequest) -> Rule:
        """Return the first rule that matches for certain, or the strictest of it and the uncertain matches before it."""
        found: list[Rule] = []
        for rule in self.rules:
            if rule.matches(call):
                found.append(rule.for_call(call))
                if rule.is_certain(call):
                    break
        else:
            found.append(self.otherwise)
        return max(found, key=lambda rule: rule.strictness)  # the first of equals

    def rule_for_hooks(self, hooks: Sequence[str]) -> Rule:
        """Return the rule for a call that only these hooks want a person to decide: the defaults of the policy."""
        people = tuple(each for each in self.otherwise.who if each in _HUMAN) or PEOPLE
        session: Session = "never" if self.otherwise.session == "never" else "call"
        return replace(self.otherwise, name=f"hook {', '.join(hooks)}", outcome="ask", who=people, session=session)

    @property
    def asks_people(self) -> bool:
        """True if a person is asked about some calls."""
        return any(rule.asks_people for rule in (*self.rules, self.otherwise))

    @property
    def longest(self) -> float:
        """The longest deadline of all rules, in seconds."""
        return max(rule.deadline for rule in (*self.rules, self.otherwise))

    def apply_to(self, policy: HookPolicy) -> HookPolicy:
        """Return the hooks' policy with the overrides of this one.

        ``respond_approval`` defaults to "always" if any rule asks or denies, so that rules also cover tools that hooks add.
        Raises ConfigurationError for a rule about such tools if they are exempt from approval.
        """
        asks_or_denies = any(rule.outcome != "allow" for rule in (*self.rules, self.otherwise))
        respond = self.respond_approval or policy.respond_approval or ("always" if asks_or_denies else None)
        changes: dict[str, Any] = {"protected": policy.protected | self.protected, "respond_approval": respond}
        policy = replace(policy, **changes)
        if policy.respond_approval != "always":
            for rule in self.rules:
                if rule.outcome != "allow" and any(source.startswith("hook:") for source in rule.sources):
                    raise ConfigurationError(
                        f"approvals, rule {rule.name!r} is about tools that hooks add, and with respond_approval = "
                        f'{respond!r} those run without approval: use "always", or leave it out.'
                    )
        return policy

    def bypassed_by(self, policy: HookPolicy) -> tuple[str, ...]:
        """Return the names of the rules that ask or deny, but do not cover tools that hooks add."""
        if policy.respond_approval == "always":
            return ()
        return tuple(rule.name for rule in (*self.rules, self.otherwise) if rule.outcome != "allow" and not rule.sources)


def role_of(call: ToolRequest) -> str:
    """Return the role of the call's turn (``context.scope.role``), or ""."""
    scope = call.context.get("scope")
    role = scope.get("role") if isinstance(scope, Mapping) else None
    return role if isinstance(role, str) else ""


def _matches(patterns: tuple[str, ...], text: str) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


def read_policy(path: str | Path) -> ApprovalPolicy:
    """Read a policy from a JSON, YAML or TOML file: the whole file, or its member ``approvals``. Raises ConfigurationError."""
    config = read_config(path)
    if isinstance(config, Mapping) and "approvals" in config:
        config = config["approvals"]
    elif isinstance(config, Mapping) and "hooks" in config:
        config = {}
    try:
        return parse_policy(config)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def parse_policy(config: Any) -> ApprovalPolicy:
    """Read the value of ``approvals`` in a configuration. Raises ConfigurationError, also for unknown keys.

    A rule with ``tool`` instead of ``tools`` would apply to all tools, so no key is ignored.
    """
    table = Table(config, "approvals")
    shared = _read_shared(table, Rule(name="default", outcome="allow"))
    rules = table.get("rules")
    if rules is not None and not isinstance(rules, list | tuple):
        raise wrong(table.at("rules"), "a list of objects", rules)
    respond = table.text("respond_approval") or None
    if respond is not None:
        HookPolicy(respond_approval=respond)  # type: ignore[arg-type]  # raises for an unknown value
    policy = ApprovalPolicy(
        rules=tuple(_read_rule(Table(each, f"{table.at('rules')}[{at}]"), at, shared) for at, each in enumerate(rules or ())),
        otherwise=Rule(name="default", outcome=table.one_of("default", get_args(Outcome), "allow"), **shared),
        respond_approval=respond,
        protected=frozenset(table.texts("protected") or ()),
        notify=read_notify(table),
    )
    _check_keys(table)
    return policy


def _read_rule(table: Table, index: int, shared: Mapping[str, Any]) -> Rule:
    annotations = table.get("annotations")
    if isinstance(annotations, list | tuple):  # ["destructive", "!read_only"]
        annotations = {name.removeprefix("!"): not name.startswith("!") for name in table.texts("annotations") or ()}
    patterns: dict[str, Any] = {name: table.texts(name) or () for name in _PATTERNS}
    settings: dict[str, Any] = dict(
        name=table.text("name") or str(index + 1),
        annotations=annotations if annotations is not None else {},
        when=table.get("when") if table.get("when") is not None else {},
        outcome=table.one_of("outcome", get_args(Outcome)),
        **patterns,
        **_read_shared(table, Rule(**shared)),
    )
    _check_keys(table)
    return Rule(**settings)


def _read_shared(table: Table, default: Rule) -> dict[str, Any]:
    deadline = table.get("deadline")
    return {
        "reason": table.text("reason", default.reason),
        "who": table.texts("who") if table.get("who") is not None else default.who,
        "deadline": deadline if deadline is not None else default.deadline,
        "at_deadline": table.text("at_deadline", default.at_deadline),
        "session": table.text("session", default.session),
    }


def _check_keys(table: Table) -> None:
    if problem := next(table.unknown(), None):
        raise ConfigurationError(problem.replace(", and is passed over", ""))
