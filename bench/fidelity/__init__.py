"""Fidelity: what the parser makes of recorded texts, how its cost grows, how fast it is. ``python -m bench.fidelity --help``.

The corpora lie beside the repository (``corpora``); what is missing is skipped and said. The figures are for a person and for the
README: the tests (``tests/formats/test_corpus.py``) hold the same corpora to the same bars without any clock.
"""
