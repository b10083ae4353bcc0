"""Tools that a hook adds to a request: whose they are, and what a hook may do to those of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from patchbay.errors import ConfigurationError, InvalidRequestError
from patchbay.hooks.answers import WrongAnswerError, own
from patchbay.hooks.policy import HookPolicy
from patchbay.schema import SchemaValidator
from patchbay.types import ToolSpec

if TYPE_CHECKING:
    from patchbay.hooks.chains import Mounted


@dataclass(frozen=True, slots=True)
class Injection:
    """A tool that is a hook's: what the model is told of it, and who answers its calls."""

    owner: Mounted
    spec: ToolSpec


def injected(
    owner: Mounted, policy: HookPolicy, before: Sequence[Any], after: Sequence[Any], *, owner_of: Callable[[str], str | None]
) -> tuple[list[Any], tuple[Injection, ...]]:
    """Return the tools that are offered after a hook has changed the list, and those of them that are its own and new or changed.

    With "additive" what was there stays as it was and where it was, and new names come behind, in order. A name that there is
    already, be it that no model is told of it, stays with whoever had it first (``owner_of``: whose it is, None for nobody's). Of
    its own tools a hook may change all but the name. "full" takes the list as it is: what is new in it is the hook's. A protected
    name is no hook's.
    """
    if policy.tool_injection == "off":
        if not _all_same(after, before):
            owner.complain("changed the tools, which hooks.policy.tool_injection forbids")
        return list(before), ()
    can_answer = "before_tool" in owner.asked
    known = {_name(tool): tool for tool in before}
    found: dict[str, Injection] = {}
    kept: list[Any] = []
    others = [name for name in known if owner_of(name) != owner.name]
    edited = [name for tool in after if (name := _name(tool)) in others] != others
    for tool in after:
        name = _name(tool)
        whose = owner_of(name)
        if name in known and (whose != owner.name or _same(tool, known[name])):
            edited = edited or not _same(tool, known[name])
            kept.append(tool)
        elif name in found:
            owner.complain("offers two tools of the name %r: the first stays", name, kind=name)
        elif not can_answer:
            owner.complain("offers the tool %r and has no before_tool to answer its calls", name, kind=name)
        elif whose is not None and whose != owner.name:
            owner.complain("offers a tool of the name %r, which another one has", name, kind=name)
        elif policy.protects(name):
            owner.complain("offers a tool of the protected name %r: it is left out", name, kind=name)
        else:
            try:
                spec = ToolSpec.from_openai(tool)
                SchemaValidator(name, spec.parameters).check()
                found[name] = Injection(owner, spec)
            except (InvalidRequestError, ConfigurationError) as error:
                owner.complain("offers a tool that is none: %s", error, kind=name)
            else:
                kept.append(tool)
    if policy.tool_injection == "full":
        return kept, tuple(found.values())
    if edited:
        owner.complain("changed tools that are not its own: they stay as they were")
    stay = [found[name].spec.to_openai() if (name := _name(tool)) in found else tool for tool in before]
    new = [each.spec.to_openai() for name, each in found.items() if name not in known]
    return [*stay, *new], tuple(found.values())


def keeps_protected(policy: HookPolicy, before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether the calls of protected tools among ``after`` are the model's own, by their ids and names; some may be missing."""
    if not policy.protected:
        return True
    calls, written = (
        [(call.get("id"), name) for call in each if policy.protects(name := _name(call))] for each in (before, after)
    )
    return all(written.count(call) <= calls.count(call) for call in written)


def keeps_system(before: Sequence[Any], after: Sequence[Any] | None) -> bool:
    """Whether the system messages stand where they stood, and say what they said. None is no change."""
    return after is None or _all_same(_system(before), _system(after))


def _system(messages: Sequence[Any]) -> list[Any]:
    return [
        [place, message.get("content")]
        for place, message in enumerate(messages)
        if isinstance(message, Mapping) and message.get("role") in ("system", "developer")
    ]


def _same(tool: Any, known: Any) -> bool:
    """Whether a tool says what it said, be it in other words: with an empty description, or without one."""
    try:
        return _all_same(tool, known) or ToolSpec.from_openai(tool) == ToolSpec.from_openai(own(known))
    except (InvalidRequestError, WrongAnswerError):
        return False


def _all_same(one: Any, other: Any) -> bool:
    """Whether these are the same as JSON, which knows no tuples."""
    try:
        return bool(one == other) or own(one) == own(other)
    except WrongAnswerError:
        return False


def _name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""
