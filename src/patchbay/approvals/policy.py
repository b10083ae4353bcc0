"""Which calls need somebody's yes: rules in order, the first that fits a call decides.

What lives here: rules as data, and which of them fits. What does not: files (``policy_file``), and asking anybody (``desk``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, get_args

from patchbay.approvals.conditions import Condition, read_conditions
from patchbay.errors import ConfigurationError
from patchbay.hooks import HookPolicy, ToolRequest
from patchbay.tools.annotations import by_our_names

Outcome: TypeAlias = Literal["allow", "deny", "ask"]
AtDeadline: TypeAlias = Literal["deny", "allow"]
Session: TypeAlias = Literal["tool", "call", "never"]
Who: TypeAlias = Literal["hooks", "terminal", "http"]

DEADLINE: Final = 300.0
"""Seconds that somebody has to decide where a rule does not say."""

LONGEST_DEADLINE: Final = 7 * 24 * 3600.0

PEOPLE: Final[tuple[Who, ...]] = ("terminal", "http")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What is to be done about some calls. What is not said fits every call; of what is said all must fit.

    ``tools``, ``sources``, ``agents`` and ``roles`` are patterns (``fs_*``), one of which must fit: the tool's name, who it is
    from ("" for this program's own), the agent's id, and the role that the turn is for. ``annotations`` are what the tool must
    say of itself: ``{"destructive": True}``; what it does not say is as good as false. Tools of others may say of themselves what
    they like: they are believed what makes a rule ask or deny, and nothing that would spare them that (``rule_for``), unless the
    rule names the ``sources`` whose word it takes.

    ``when`` has conditions on the arguments, all of which must hold: ``{"path": "/etc/*", "amount": {"gt": 100}}``
    (docs/approvals.md). One that cannot be told, because there is no value or one of another kind, holds where the rule asks or
    denies, and does not where it allows.

    ``outcome`` is "allow", "deny" (``reason`` tells the model why) or "ask". ``who`` is asked: "terminal" and "http" are people,
    of whom the first to decide does so; with "hooks" there must be another approve hook, alone or besides people. They have
    ``deadline`` seconds; then the call is denied, or with ``at_deadline`` "allow" carried out. ``session`` is what a person's yes
    for the session is for: every call of the "tool", this "call" with these arguments, or "never" (there is none).
    Raises ConfigurationError.
    """

    name: str = ""
    tools: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    annotations: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    when: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    outcome: Outcome = "ask"
    reason: str = ""
    who: tuple[Who, ...] = PEOPLE
    deadline: float = DEADLINE
    at_deadline: AtDeadline = "deny"
    session: Session = "tool"
    _conditions: tuple[Condition, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("tools", "sources", "agents", "roles", "who"):
            patterns = getattr(self, name)
            if isinstance(patterns, str) or not all(isinstance(each, str) for each in patterns):
                raise ConfigurationError(f"{self._place}{name} must be a list of texts, not {patterns!r}.")
            object.__setattr__(self, name, tuple(patterns))
        for name, kind in (("outcome", Outcome), ("at_deadline", AtDeadline), ("session", Session)):
            if getattr(self, name) not in get_args(kind):
                raise ConfigurationError(
                    f"{self._place}{name} is {getattr(self, name)!r}: use one of {', '.join(get_args(kind))}."
                )
        if not self.who or not set(self.who) <= set(get_args(Who)):
            raise ConfigurationError(f"{self._place}who must name some of {', '.join(get_args(Who))}, not {list(self.who)!r}.")
        if not isinstance(self.annotations, Mapping):
            raise ConfigurationError(f"{self._place}annotations must be an object, not {self.annotations!r}.")
        object.__setattr__(self, "annotations", MappingProxyType(by_our_names(self.annotations)))
        try:
            object.__setattr__(self, "_conditions", read_conditions(self.when))
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._place}{error}") from None
        object.__setattr__(self, "when", MappingProxyType(dict(self.when)))
        checked_deadline(self.deadline, f"{self._place}deadline")

    @property
    def strictness(self) -> int:
        """How much stands between a call and its tool: least where it is let go, most where it is denied."""
        if self.outcome == "ask":
            return 1 if self.at_deadline == "allow" else 2
        return 0 if self.outcome == "allow" else 3

    def takes_the_word_of(self, call: ToolRequest) -> bool:
        """Whether what the call's tool says of itself is believed here: this program's own is, or that of a source it names."""
        return not call.source or bool(self.sources)

    @property
    def asks_people(self) -> bool:
        """Whether a person is asked."""
        return self.outcome == "ask" and any(each in PEOPLE for each in self.who)

    def fits(self, call: ToolRequest) -> bool:
        """Whether the rule is about this call."""
        return (
            _fits(self.tools, call.tool)
            and _fits(self.sources, call.source)
            and (not self.agents or _fits(self.agents, call.meta.agent_id))
            and (not self.roles or _fits(self.roles, role_of(call) or call.meta.agent_id))
            and (not self.annotations or self._is_annotated(call))
            and self._holds(call) is not False
        )

    def is_certain(self, call: ToolRequest) -> bool:
        """Whether the rule, which is about this call, is so whatever its tool says of itself and leaves unsaid."""
        return (not self.annotations or self.takes_the_word_of(call)) and self._holds(call) is True

    def _holds(self, call: ToolRequest) -> bool | None:
        """Return whether the conditions on arguments hold; None, for a rule that asks or denies, where that cannot be told."""
        if not self._conditions:
            return True
        results = {each.holds(call.arguments, call.parameters) for each in self._conditions}
        if results == {True}:
            return True
        return False if False in results or self.outcome == "allow" else None

    def _is_annotated(self, call: ToolRequest) -> bool:
        believed = self.takes_the_word_of(call)
        said = by_our_names(call.annotations)
        return all(
            (not believed and wanted is False)
            or (bool(said.get(name)) is wanted if isinstance(wanted, bool) else said.get(name) == wanted)
            for name, wanted in self.annotations.items()
        )

    @property
    def _place(self) -> str:
        return f"approvals, rule {self.name!r}: " if self.name else "approvals: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalPolicy:
    """Rules in order, and what is done about calls that none of them fits (``otherwise``).

    ``respond_approval`` and ``protected`` are a HookPolicy's, None and empty where nothing is said of them here.
    Raises ConfigurationError.
    """

    rules: Sequence[Rule] = ()
    otherwise: Rule = field(default_factory=lambda: Rule(name="default", outcome="allow"))
    respond_approval: str | None = None
    protected: frozenset[str] = frozenset()

    def rule_for(self, call: ToolRequest) -> Rule:
        """Return the rule that decides about a call: the first that fits.

        A rule that fits only by the word of a tool that is not believed, or because a condition on an argument cannot be told,
        does not stand in the way of those after it: of all these and the first that fits without, the strictest decides.
        """
        found: list[Rule] = []
        for rule in self.rules:
            if rule.fits(call):
                found.append(rule)
                if rule.is_certain(call):
                    break
        else:
            found.append(self.otherwise)
        return max(found, key=lambda rule: rule.strictness)  # the first of those that are alike

    def asked_for(self, hooks: Sequence[str]) -> Rule:
        """Return the rule for a call of which hooks want a person to decide, and no rule does: what holds for all rules here."""
        people = tuple(each for each in self.otherwise.who if each in PEOPLE) or PEOPLE
        session: Session = "never" if self.otherwise.session == "never" else "call"
        return replace(self.otherwise, name=f"hook {', '.join(hooks)}", outcome="ask", who=people, session=session)

    @property
    def longest(self) -> float:
        """The longest deadline of all, in seconds."""
        return max(rule.deadline for rule in (*self.rules, self.otherwise))

    @property
    def refuses(self) -> bool:
        """Whether there are calls that do not simply run."""
        return any(rule.outcome != "allow" for rule in (*self.rules, self.otherwise))

    def of_hooks(self, policy: HookPolicy) -> HookPolicy:
        """Return the policy of hooks with what this one says of them.

        Where nobody has said whether approvers are asked about the tools that hooks add, they are if this policy ever refuses or
        asks: a rule is about all calls that it fits. Raises ConfigurationError for a rule about such tools where somebody has
        said that nobody is asked about them.
        """
        respond = self.respond_approval or policy.respond_approval or ("always" if self.refuses else None)
        changes: dict[str, Any] = {"protected": policy.protected | self.protected, "respond_approval": respond}
        policy = replace(policy, **changes)
        if policy.respond_approval != "always":
            for rule in self.rules:
                if rule.outcome != "allow" and any(source.startswith("hook:") for source in rule.sources):
                    raise ConfigurationError(
                        f"approvals, rule {rule.name!r} is about tools that hooks add, and with respond_approval = "
                        f'{respond!r} those are carried out without asking: say "always", or nothing.'
                    )
        return policy

    def passed_by(self, policy: HookPolicy) -> tuple[str, ...]:
        """Return the names of the rules that ask or deny whatever tool they fit, but for those that hooks add."""
        if policy.respond_approval == "always":
            return ()
        return tuple(rule.name for rule in (*self.rules, self.otherwise) if rule.outcome != "allow" and not rule.sources)


def role_of(call: ToolRequest) -> str:
    """Return the role that a turn is for, as ``context.scope.role`` says it; "" where nobody says one."""
    scope = call.context.get("scope")
    role = scope.get("role") if isinstance(scope, Mapping) else None
    return role if isinstance(role, str) else ""


def checked_deadline(seconds: Any, what: str) -> float:
    """Return ``seconds``. Raises ConfigurationError for a time that nobody can wait for."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or not 0 < seconds <= LONGEST_DEADLINE:
        raise ConfigurationError(f"{what} must be a number of seconds above 0, and at most a week, not {seconds!r}.")
    return float(seconds)


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)
