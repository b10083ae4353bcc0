"""Constraints: what a model server may sample, so that a reply's calls are valid by construction."""
