"""xgrammar's matcher. Its import wants torch and transformers, of which it uses nothing here but types."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest


class _Types(ModuleType):
    """A module whose every attribute is a class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_args, **_named: None})


def load() -> Any:
    """Import xgrammar; skip the test if it is not installed."""
    for name in ("tvm_ffi", "numpy", "xgrammar"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"not installed: {name} (pip install --no-deps -r tests/real_model/requirements.txt)")
    importlib.import_module("tvm_ffi")  # (it looks for a real torch)
    stubs = [name for name in ("torch", "transformers") if name not in sys.modules]
    sys.modules.update({name: _Types(name) for name in stubs})
    try:
        return importlib.import_module("xgrammar")
    finally:
        for name in stubs:
            del sys.modules[name]


class XgrammarMatcher:
    """xgrammar's matcher of a grammar, with a byte for each token."""

    def __init__(self, xgrammar: Any, grammar: str) -> None:
        self._xgrammar = xgrammar
        tokens = [*(bytes([code]) for code in range(256)), b"<eos>"]
        info = xgrammar.TokenizerInfo(tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256])
        self._compiled = xgrammar.GrammarCompiler(info).compile_grammar(grammar)

    def accepts(self, text: str) -> bool:
        """Whether the text is a whole reply."""
        matcher = self._xgrammar.GrammarMatcher(self._compiled)
        return bool(matcher.accept_string(text) and matcher.accept_token(256))
