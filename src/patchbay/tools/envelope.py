"""What a tool gave back in an envelope, ``{"output", "is_error", "error", "images"}``: its output, or an error for the model.

What lives here: opening one, and which of a handler's dicts is one. What does not: which answers of a callback are; that door has
a rule of its own (``patchbay.server.callback_tool``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import ToolError
from patchbay.tools.images import with_images
from patchbay.tools.results import render_result
from patchbay.types import Illustrated

NO_REASON: Final = "the tool failed and did not say why"

_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""What is taken for a code: a word for programs, and not a sentence."""

_logger = logging.getLogger(__name__)


class ReportedError(ToolError):
    """A tool said that it failed. ``output`` is what it gave back all the same; the model is shown both.

    ``code`` is what the tool calls the failure, where that is a word of up to 64 letters, digits, ``_``, ``.`` and ``-``; else
    it is that of any failure. ``ran`` is whether its handler ran, as the tool says it: "no", "yes" or "unknown".
    """

    def __init__(
        self, message: str, output: Any = None, *, tool_name: str = "", code: object = None, ran: object = "yes"
    ) -> None:
        super().__init__(message, tool_name=tool_name)
        self.output = output
        self.ran = ran if ran in ("no", "unknown") else "yes"
        if isinstance(code, str) and _CODE.fullmatch(code):
            self.code = code

    @property
    def for_model(self) -> str:
        """The message and the output as one JSON object; where the output has an ``error`` of its own, that is the message."""
        output = self.output
        if isinstance(output, Mapping):
            return render_result({"error": str(self), **output})
        return render_result({"error": str(self)} if output is None else {"error": str(self), "output": output})


def is_envelope(value: Any) -> bool:
    """Whether what a handler returned is an envelope: a dict with ``is_error``, or with both ``output`` and ``images``.

    Any other dict is plain data, ``{"output": 1}`` too.
    """
    return isinstance(value, Mapping) and ("is_error" in value or ("output" in value and "images" in value))


def open_envelope(envelope: Mapping[str, Any], *, tool_name: str = "") -> Any:
    """Return the output: what stands under ``output``, else all of it but ``images``. Raises ReportedError for ``is_error``.

    Where there are images that can be taken (``patchbay.tools.images``), it comes with them, as an Illustrated.
    """
    failed = is_true(envelope.get("is_error"), tool_name=tool_name)
    message = envelope.get("error")
    if "output" in envelope:
        output = envelope["output"]
    else:
        said = ("images", "is_error", "error") if failed else ("images",)
        output = {key: value for key, value in envelope.items() if key not in said}
    if not failed:
        images = envelope.get("images")
        return _with_images(output, images) if images else output
    reason = NO_REASON if message in (None, "") else render_result(message)
    raise ReportedError(reason, output, tool_name=tool_name, code=envelope.get("code"), ran=envelope.get("ran"))


def _with_images(output: Any, images: Any) -> Any:
    output, attachments = with_images(output, images)
    return Illustrated(output, attachments) if attachments else output


def is_true(value: Any, *, tool_name: str = "") -> bool:
    """Read ``is_error``: a truth value or its name. Whatever else it is says nothing, and is logged with the tool's name."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if value is not None and not isinstance(value, bool):
        who = f"The tool {tool_name!r}" if tool_name else "A tool"
        _logger.warning("%s answered is_error=%r, which is neither true nor false: it is passed over", who, value)
    return value is True
