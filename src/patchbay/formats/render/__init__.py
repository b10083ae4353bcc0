"""Writers: instructions about tools, and the layout of calls and results in a history."""

from patchbay.formats.render.table import WRITERS, Writer, format_for, render_calls, writer_for

__all__ = ["WRITERS", "Writer", "format_for", "render_calls", "writer_for"]
