"""DeepSeek V3.2, V4 and V4.1, and GigaChat 3.5: tags with a token in them that names the markup.

Which word the wrapper has, and whether a blank stands behind the token, differs between sister versions, and models take each
other's. Servers that remove special tokens leave tags without it.
"""

from __future__ import annotations

from itertools import product

from patchbay.formats.families.common import THINK, TURNS
from patchbay.formats.families.tags import INVOKE, opening
from patchbay.formats.rows import Format, Wrapper

_WORDS = ("function_calls", "tool_calls", "calls", "toolcalls", "tool_call", "tool")


def _wrappers(name: str) -> tuple[Wrapper, ...]:
    """The wrappers of the markup ``name``, and what is left of them without their token."""
    tokens = tuple(pipe + name + pipe + blank for pipe, blank in product("｜|", ("", " ")))
    stripped = ("function_calls", " function_calls", "tool_calls", " tool_calls", " calls")
    words = (*(token + word for token, word in product(tokens, _WORDS)), *stripped)
    return (
        Wrapper(openers=tuple(f"<{word}>" for word in words), closers=tuple(f"</{word}>" for word in words)),
        opening(*(f"<{token}invoke" for token in tokens), closers=tuple(f"</{token}invoke>" for token in tokens)),
        INVOKE,
    )


_DSML = _wrappers("DSML")

DEEPSEEK_V32 = Format("deepseek_v32", families=("DeepSeek V3.2",), wrappers=_DSML, thoughts=(THINK,), leaks=TURNS, loose=False)
DEEPSEEK_V4 = Format("deepseek_v4", families=("DeepSeek V4",), wrappers=_DSML, thoughts=(THINK,), leaks=TURNS, loose=False)
DEEPSEEK_V41 = Format("deepseek_v41", families=("DeepSeek V4.1",), wrappers=_DSML, thoughts=(THINK,), leaks=TURNS, loose=False)
GIGACHAT35 = Format(
    "gigachat35", families=("GigaChat 3.5",), wrappers=_wrappers("GCML"), thoughts=(THINK,), leaks=TURNS, loose=False
)
