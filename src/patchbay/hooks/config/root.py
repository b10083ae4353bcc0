"""The root of a configuration: which of its keys are ours, and which only look as if they were.

The file may be another program's too, so what is not ours is passed over. What is nearly ours is refused: guards and approvals
that are not there because of a missing letter would let everything through, and nobody would be told.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import ConfigurationError

HOOKS: Final = "hooks"
APPROVALS: Final = "approvals"

_NEAR: Final[Mapping[str, float]] = {HOOKS: 0.85, APPROVALS: 0.75}
"""How like one of ours another key is that must have been meant as it: ``hook``, ``approval``, ``Approvals``, ``approvers``."""

POLICY_KEYS: Final = frozenset({"rules", "default", "deadline", "at_deadline", "who", "respond_approval", "protected"})
"""Keys of a policy of approvals that stand at the root of a file which holds nothing else."""

_HOOKS_KEYS: Final = frozenset({"processes", "builtins", "policy"})


def check_root(found: Any) -> None:
    """Raise ConfigurationError for a key at the root that would be passed over, and must have been meant for us."""
    if not isinstance(found, Mapping):
        return
    is_ours = HOOKS in found or APPROVALS in found
    for key in found:
        if not isinstance(key, str) or key in _NEAR:
            continue
        for ours, likeness in _NEAR.items():
            if difflib.SequenceMatcher(None, key.strip().lower(), ours).ratio() >= likeness:
                raise ConfigurationError(
                    f"{key} is not known: is {ours!r} meant? What is another program's needs a name that is less like it."
                )
        if is_ours and (key in POLICY_KEYS or key in _HOOKS_KEYS):
            place = APPROVALS if key in POLICY_KEYS else HOOKS
            raise ConfigurationError(f"{key} stands beside 'hooks' or 'approvals', where nobody reads it: write {place}.{key}.")


def policy_in(found: Any) -> Any:
    """Return what a configuration says of approvals: its member ``approvals``, or all of what is nothing but a policy.

    Raises ConfigurationError for one in which nothing is for us: whoever names it means to be governed.
    """
    if not isinstance(found, Mapping) or not found:
        return found
    if APPROVALS in found:
        return found[APPROVALS]
    if HOOKS in found:
        return {}
    if POLICY_KEYS.isdisjoint(found):
        raise ConfigurationError("there is neither 'hooks' nor 'approvals' in it: nothing would be governed.")
    return found
