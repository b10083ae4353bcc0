"""Formats whose answer is a sequence of messages on channels, each with a header: harmony and its kin."""
