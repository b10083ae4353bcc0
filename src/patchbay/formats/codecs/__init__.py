"""Codecs: one reader for each notation of calls, used between the markers of a wrapper or behind a header."""
