"""Formats of a checkpoint or a user: detected by a template or a name, or declared in a file."""
