"""Calls of a real small model on a real llama.cpp, with and without a constraint. ``python -m bench.constrained --help``.

The model is SmolLM2-135M-Instruct: small enough for a laptop's processor, and too small to write calls by itself. What is absent is
skipped, with the reason. ``tests/real_model`` tests single requests; this counts how many of many are right.
"""
