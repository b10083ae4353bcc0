"""A policy in a file: JSON, YAML or TOML, alone or as ``approvals`` of the configuration that the hooks stand in.

What lives here: the keys. What does not: what they mean (``policy``). A key that is not known is refused, unlike elsewhere: a
rule with ``tool`` in the place of ``tools`` would be about all tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

from patchbay.approvals.policy import ApprovalPolicy, Outcome, Rule
from patchbay.errors import ConfigurationError
from patchbay.hooks import HookPolicy
from patchbay.hooks.config.file import read_config
from patchbay.hooks.config.table import Table, wrong

_SHARED: Final = frozenset({"reason", "who", "deadline", "at_deadline", "session"})
_MATCHERS: Final = ("tools", "sources", "agents", "roles")
_POLICY: Final = frozenset({"rules", "default", "respond_approval", "protected", *_SHARED})
_RULE: Final = frozenset({"name", "annotations", "when", "outcome", *_MATCHERS, *_SHARED})


def read_policy(path: str | Path) -> ApprovalPolicy:
    """Read the policy of a file: all of it, or its member ``approvals``. Raises ConfigurationError, with the file's name."""
    found = read_config(path)
    if isinstance(found, Mapping) and "approvals" in found:
        found = found["approvals"]
    elif isinstance(found, Mapping) and "hooks" in found:
        found = {}
    try:
        return parse_policy(found)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def parse_policy(found: Any) -> ApprovalPolicy:
    """Read what stands under ``approvals``. Raises ConfigurationError."""
    table = Table(found, "approvals")
    _check_keys(table, _POLICY)
    shared = _shared(table, Rule(name="default", outcome="allow"))
    given = table.get("rules")
    if given is not None and not isinstance(given, list | tuple):
        raise wrong(table.at("rules"), "a list of objects", given)
    rules = tuple(_rule(Table(each, f"{table.at('rules')}[{at}]"), at, shared) for at, each in enumerate(given or ()))
    respond = table.text("respond_approval") or None
    protected = frozenset(table.texts("protected") or ())
    if respond is not None:
        HookPolicy(respond_approval=respond)  # type: ignore[arg-type]  # here it is found out whether it is one of them
    return ApprovalPolicy(
        rules=rules,
        otherwise=Rule(name="default", outcome=_one_of(table, "default", "allow"), **shared),
        respond_approval=respond,
        protected=protected,
    )


def _rule(table: Table, at: int, shared: Mapping[str, Any]) -> Rule:
    _check_keys(table, _RULE)
    annotations = table.get("annotations")
    if isinstance(annotations, list | tuple):
        annotations = _listed(table.texts("annotations") or ())
    matched: dict[str, Any] = {name: table.texts(name) or () for name in _MATCHERS}
    return Rule(
        name=table.text("name") or str(at + 1),
        annotations=annotations if annotations is not None else {},
        when=table.get("when") if table.get("when") is not None else {},
        outcome=_one_of(table, "outcome"),
        **matched,
        **_shared(table, Rule(**shared)),
    )


def _shared(table: Table, before: Rule) -> dict[str, Any]:
    deadline = table.get("deadline")
    return {
        "reason": table.text("reason", before.reason),
        "who": table.texts("who") if table.get("who") is not None else before.who,
        "deadline": deadline if deadline is not None else before.deadline,
        "at_deadline": table.text("at_deadline", before.at_deadline),
        "session": table.text("session", before.session),
    }


def _one_of(table: Table, key: str, default: str = "") -> Any:
    """Return an outcome."""
    value = table.text(key, default)
    if value not in get_args(Outcome):
        raise wrong(table.at(key), f"one of {', '.join(get_args(Outcome))}", value)
    return value


def _listed(names: tuple[str, ...]) -> dict[str, bool]:
    """``["destructive", "!read_only"]``: what must be said, and what must not."""
    return {name.removeprefix("!"): not name.startswith("!") for name in names}


def _check_keys(table: Table, known: frozenset[str]) -> None:
    if problem := next(table.unknown(known), None):
        raise ConfigurationError(problem.replace(", and is passed over", ""))
