"""GigaChat 3: one call behind a role of its own (3.0), or behind a token (3.1)."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Wrapper

_ROLE = "function call<|role_sep|>"

GIGACHAT3 = Format(
    "gigachat3",
    families=("GigaChat 3", "GigaChat 3.1"),
    wrappers=(
        Wrapper(
            openers=("<|function_call|>", f"<|message_sep|>\n\n{_ROLE}", f"<|message_sep|>{_ROLE}"),
        ),
    ),
    leaks=(*TURNS, "<|message_sep|>", "<|message_sep|>\n\nassistant<|role_sep|>"),
)
