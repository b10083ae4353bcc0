"""The writing side: how a model is instructed about tools, and how calls and results are shown to it."""

from patchbay.formats.render.families import WRITERS, Writer, format_for, render_calls, writer_for

__all__ = ["WRITERS", "Writer", "format_for", "render_calls", "writer_for"]
