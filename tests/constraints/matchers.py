"""Matchers of other projects for our grammars: llguidance, and xgrammar where it is installed. Each byte is a token."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark
from typing_extensions import override

from patchbay.constraints.calls import OfferedTool
from patchbay.constraints.replies import ReplyRules, reply_grammar
from patchbay.constraints.schemas import compile_schema
from patchbay.formats.render import writer_for
from patchbay.types import ToolSpec

END: Final = 256
CALLS: Final = ReplyRules(needed=True)


class _Bytes:
    """A tokenizer whose tokens are the bytes and an end."""

    eos_token_id = END
    bos_token_id = None
    tokens = (*(bytes([code]) for code in range(256)), b"<eos>")
    special_token_ids = (END,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@lru_cache(maxsize=1)
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()))


def grammar_of(name: str, specs: Sequence[ToolSpec], rules: ReplyRules = CALLS) -> str:
    """The grammar of replies in the format ``name``."""
    return reply_grammar(writer_for(name), [OfferedTool(spec, compile_schema(spec.parameters)) for spec in specs], rules)


class Matcher:
    """llguidance's matcher of a grammar in GBNF."""

    def __init__(self, grammar: str) -> None:
        self._matcher = LLMatcher(_tokenizer(), self._lark(grammar))
        assert not self._matcher.is_error(), f"{self._matcher.get_error()}\n{grammar}"

    def _lark(self, grammar: str) -> str:
        # Its own function writes what its regular expressions do not read.
        return re.sub(r"\\U([0-9A-F]{6})", r"\\x{\1}", gbnf_to_lark(grammar))

    def accepts(self, text: str) -> bool:
        """Whether the text is a whole reply."""
        matcher, tokens = self._matcher.deep_copy(), list(text.encode())
        return matcher.validate_tokens(tokens) == len(tokens) and matcher.consume_tokens(tokens) and matcher.is_accepting()

    def accepted_part(self, text: str) -> str:
        """The beginning of a text that is the beginning of a reply: where it ends shows what a matcher refused."""
        tokens = list(text.encode())
        return bytes(tokens[: self._matcher.validate_tokens(tokens)]).decode("utf-8", "replace")

    def sample(self, rng: random.Random, most: int = 3000) -> str | None:
        """A reply of random bytes, with many quotes and brackets; None if it would be longer than ``most`` bytes."""
        matcher, written = self._matcher.deep_copy(), bytearray()
        while len(written) < most:
            mask = matcher.compute_logit_bias()
            allowed = [code for code in range(END + 1) if mask[code]]
            assert allowed, f"no byte may follow {bytes(written)!r}"
            may_end = allowed[-1] == END
            if may_end and (len(allowed) == 1 or rng.random() < 0.5):
                return written.decode("utf-8")
            letters = [code for code in allowed if code in _PRINTABLE] or [code for code in allowed if code != END]
            marks = [code for code in letters if code in _MARKS]
            code = rng.choice(marks if marks and rng.random() < 0.35 else letters)
            matcher.consume_token(code)
            written.append(code)
            if matcher.is_stopped():
                return written.decode("utf-8")
        return None


class LarkMatcher(Matcher):
    """llguidance's matcher of a grammar in Lark's notation, which it reads itself."""

    @override
    def _lark(self, grammar: str) -> str:
        return grammar


_PRINTABLE: Final = frozenset([10, *range(32, 127)])
_MARKS: Final = frozenset(b'"<`\\}])\n|')
