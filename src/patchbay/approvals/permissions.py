"""Standing permissions: calls that a person has allowed for good, never more of them than the person was shown."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self, TypeAlias

from patchbay._redaction import Redactor, is_secret_name
from patchbay.approvals.request import ApprovalRequest
from patchbay.errors import ApprovalConflictError, InvalidRequestError
from patchbay.hooks.calls import is_same_json

Criterion: TypeAlias = Mapping[str, Any]
"""What a value must be: ``{"is": VALUE}``, ``{"same": true}``, ``{"below": FOLDER}`` or ``{"any": true}``.

``same`` is the value of the approved call, which is not written out: a secret, or a long text. A salted hash is kept.
"""

ANY: Final[Criterion] = {"any": True}
_SAME_VALUE: Final[Criterion] = {"same": True}
_PARTS: Final = ("arguments", "facts")
_SAME: Final = ("tool", "source", "endpoint", "role", "agent", "rule", "who")
"""Members of a request that must be those of the permission."""

_UNCLEAR: Final = re.compile(r"[\x00-\x1f\x7f-\x9f%\\*?\[\]{}$`~:\"'<>|]|\A//")
"""What a tool may read otherwise than as a plain path."""

_MOST_CHARS: Final = 2000
"""Characters of a value that is written out."""

_MOST_DIGITS: Final = 15
"""Digits of a whole number that every client shows as it is."""

_MOST_STEPS: Final = 20
"""Folders above a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Calls that run without a question. The descriptions of its members are those of ``/openapi.json``."""

    id: str = field(metadata={"description": "That of the request that was approved with it."})
    created: float = field(metadata={"description": "Seconds since 1970."})
    by: str = field(metadata={"description": "Who allows it."})
    tool: str
    source: str = ""
    endpoint: str = ""
    role: str = ""
    agent: str = ""
    rule: str = field(default="", metadata={"description": "The policy's rule that asked. Other rules ask all the same."})
    who: tuple[str, ...] = ()
    arguments: Mapping[str, Criterion] = field(
        default_factory=dict,
        metadata={
            "description": "What each argument must be: `is` a value, the `same` value that is not written out (a secret, "
            "a long text), a path `below` a folder, or `any` value and none. A call with further arguments is not covered."
        },
    )
    facts: Mapping[str, Criterion] = field(
        default_factory=dict, metadata={"description": "Likewise what the tool finds out about the call."}
    )

    def covers(self, request: ApprovalRequest) -> bool:
        """Return whether the call of a request needs no question."""
        if request.always == "never" or any(getattr(self, name) != getattr(request, name) for name in _SAME):
            return False
        if request.always == "call" and not all(each.keys() <= {"is", "same"} for each in self._criteria):
            return False
        parts = json.loads(request.arguments), request.facts
        return all(_fits(criteria, values) for criteria, values in zip((self.arguments, self.facts), parts, strict=True))

    @property
    def _criteria(self) -> tuple[Criterion, ...]:
        return (*self.arguments.values(), *self.facts.values())

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object. The hashes are left out."""
        shown = {part: {name: _without_hash(each) for name, each in getattr(self, part).items()} for part in _PARTS}
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "who": list(self.who), **shown}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read the result of ``as_json``. Raises ValueError."""
        try:
            return cls(**{each.name: body[each.name] for each in fields(cls)} | {"who": tuple(body["who"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"invalid permission: {error}") from error


def steps_of(request: ApprovalRequest) -> dict[str, dict[str, list[Criterion]]]:
    """Return the criteria for each argument and fact of a call, the narrowest first. Raises ApprovalConflictError."""
    if request.always == "never":
        why = f"a hook asked for a person ({request.why:.200})" if request.why else "its rule says so (session = never)"
        raise ApprovalConflictError(f"This call cannot be allowed for good: {why}.")
    properties = (request.parameters or {}).get("properties")
    schemas = properties if isinstance(properties, Mapping) else {}
    given = {"arguments": json.loads(request.arguments), "facts": request.facts}
    return {
        part: {name: _steps(name, value, schemas.get(name), request.always) for name, value in given[part].items()}
        for part in _PARTS
    }


def make_permission(request: ApprovalRequest, chosen: Mapping[str, Any] | None = None, *, by: str, now: float) -> Permission:
    """Return the permission of a request.

    ``chosen`` has criteria of ``steps_of`` in ``arguments`` and ``facts``; those that it leaves out are the narrowest ones.
    Raises ApprovalConflictError, InvalidRequestError.
    """
    steps, chosen = steps_of(request), chosen or {}
    values = {"arguments": json.loads(request.arguments), "facts": request.facts}
    if not chosen.keys() <= values.keys():
        raise InvalidRequestError("A permission has criteria for arguments and facts, and no others.", param="permission")
    arguments, facts = (_choose(chosen.get(part, {}), steps[part], values[part]) for part in _PARTS)
    return Permission(
        id=request.id,
        created=now,
        by=by,
        tool=request.tool,
        source=request.source,
        endpoint=request.endpoint,
        role=request.role,
        agent=request.agent,
        rule=request.rule,
        who=request.who,
        arguments=arguments,
        facts=facts,
    )


def _choose(wanted: Any, steps: Mapping[str, list[Criterion]], values: Mapping[str, Any]) -> dict[str, Criterion]:
    if not isinstance(wanted, Mapping) or not wanted.keys() <= steps.keys():
        raise InvalidRequestError(f"A permission has criteria for what the call has: {', '.join(steps)}.", param="permission")
    chosen: dict[str, Criterion] = {}
    for name, offered in steps.items():
        criterion = wanted.get(name, offered[0])
        if not any(is_same_json(criterion, each) for each in offered):
            choices = ", ".join(json.dumps(each)[:100] for each in offered)
            raise InvalidRequestError(f"For {name!r:.99} the permission can have one of {choices}.", param="permission")
        chosen[name] = {"same": _hashed(values[name])} if "same" in criterion else criterion
    return chosen


def _steps(name: str, value: Any, schema: Any, scope: str) -> list[Criterion]:
    found: list[Criterion] = [_SAME_VALUE if _is_hidden(name, value, schema) else {"is": value}]
    if scope != "tool":
        return found
    if "is" in found[0] and isinstance(value, str) and _is_plain_path(value):
        folder = posixpath.dirname(value)
        while folder not in ("", "/") and len(found) < _MOST_STEPS:
            found.append({"below": folder})
            folder = posixpath.dirname(folder)
    return [*found, ANY]


def _fits(criteria: Mapping[str, Criterion], values: Mapping[str, Any]) -> bool:
    if not values.keys() <= criteria.keys():
        return False
    return all("any" in each or (name in values and _is_met(each, values[name])) for name, each in criteria.items())


def _is_met(criterion: Criterion, value: Any) -> bool:
    if "is" in criterion:
        return is_same_json(criterion["is"], value)
    if "below" in criterion:
        return isinstance(value, str) and _is_plain_path(value) and value.startswith(f"{criterion['below']}/")
    expected = criterion.get("same")
    return isinstance(expected, str) and secrets.compare_digest(_hashed(value, expected.partition(":")[0]), expected)


def _is_plain_path(text: str) -> bool:
    """Return whether every tool reads a text as the same path: in normal form, without ``..``, encodings and wildcards."""
    steps = text.split("/")
    return text == text.strip() == posixpath.normpath(text) and ".." not in steps and not _UNCLEAR.search(text)


def _is_hidden(name: str, value: Any, schema: Any) -> bool:
    """Return whether a value is not written out: a secret, too long to be read, or with a number that JavaScript would change."""
    declared = isinstance(schema, Mapping) and (schema.get("format") == "password" or schema.get("writeOnly") is True)
    text = json.dumps(value)
    numbers: list[str] = []
    json.loads(text, parse_int=numbers.append)
    if any(len(each) > _MOST_DIGITS for each in numbers):
        return True
    return len(text) > _MOST_CHARS or declared or is_secret_name(name) or _has_secret_name(value) or Redactor().text(text) != text


def _has_secret_name(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(is_secret_name(name) or _has_secret_name(each) for name, each in value.items())
    return isinstance(value, list) and any(_has_secret_name(each) for each in value)


def _hashed(value: Any, salt: str = "") -> str:
    salt = salt or secrets.token_hex(16)
    return f"{salt}:{hashlib.sha256(f'{salt}{json.dumps(value, sort_keys=True)}'.encode()).hexdigest()}"


def _without_hash(criterion: Criterion) -> Criterion:
    return _SAME_VALUE if "same" in criterion else criterion
