"""The writing side: how a model is told of tools, and how calls and results are shown to it. No I/O and no clock in here.

``writer`` is the protocol, ``table`` the door. ``fenced`` is the contract for models that have no format of their own; all
others are rows of data over ``family``: ``json_tags``, ``named``, ``xml_parameters``, ``xml_keys``, ``gemma``, ``python`` and
``bare``. ``marks`` keeps data from passing for anything else, ``values`` and ``xml`` spell arguments, ``listings`` and
``typescript`` tools.
"""

from patchbay.formats.writing.table import WRITERS, format_for, render_calls, writer_for
from patchbay.formats.writing.writer import Writer

__all__ = ["WRITERS", "Writer", "format_for", "render_calls", "writer_for"]
