"""Llama 3: a call as bare JSON (``loose``), or behind the token that its code interpreter has too."""

from __future__ import annotations

from patchbay.formats.families.common import TURNS
from patchbay.formats.rows import Format, Wrapper, last_part

INTERPRETERS = ("python", "code_interpreter", "ipython")
"""The names under which a tool that runs code is offered."""


def _name(header: str) -> str:
    """The name of a built-in tool, which is called as an object's method: ``brave_search.call(query="…")``."""
    return last_part(header).removesuffix(".call")


PYTHON_TAG = Wrapper(openers=("<|python_tag|>",), name=_name, code=INTERPRETERS)

LLAMA3_JSON = Format("llama3_json", families=("Llama 3.1, 3.2, 3.3",), wrappers=(PYTHON_TAG,), leaks=TURNS)
