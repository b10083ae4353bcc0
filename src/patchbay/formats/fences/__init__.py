"""Fences of backticks and tildes: blocks that hold calls, and blocks that show something."""
