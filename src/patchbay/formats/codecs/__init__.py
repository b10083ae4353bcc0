"""Readers of calls, one for each notation: what stands between the markers of a wrapper or behind a header."""
