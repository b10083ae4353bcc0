"""``functools[...]``: a word and a list, as Phi-4-mini and FireFunction write it."""

from __future__ import annotations

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.families.hermes import PIPED
from patchbay.formats.rows import Format, Wrapper

_FUNCTOOLS = Wrapper(openers=("functools[", "functools ["), keeps=1)

PHI4_MINI = Format("phi4_mini", families=("Phi-4-mini",), wrappers=(_FUNCTOOLS, PIPED), thoughts=(THINK,), leaks=TURNS)
FIREFUNCTION_V2 = Format("firefunction_v2", families=("FireFunction v2",), wrappers=(_FUNCTOOLS,), leaks=TURNS)
