"""What a tool gave back in an envelope, ``{"output", "is_error", "error"}``: its output, or an error that the model can read.

What lives here: opening one. What does not: which answers are envelopes at all; each door says that for itself. A handler in
this process gives one by having ``is_error`` in its dict (``definition``), and any other dict is plain data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import ToolError
from patchbay.tools.results import render_result

NO_REASON: Final = "the tool failed and did not say why"

_logger = logging.getLogger(__name__)


class ReportedError(ToolError):
    """A tool said that it failed. ``output`` is what it gave back all the same; the model is shown both."""

    def __init__(self, message: str, output: Any = None, *, tool_name: str = "") -> None:
        super().__init__(message, tool_name=tool_name)
        self.output = output

    @property
    def for_model(self) -> str:
        """The message and the output as one JSON object; where the output has an ``error`` of its own, that is the message."""
        output = self.output
        if isinstance(output, Mapping):
            return render_result({"error": str(self), **output})
        return render_result({"error": str(self)} if output is None else {"error": str(self), "output": output})


def open_envelope(envelope: Mapping[str, Any], *, tool_name: str = "") -> Any:
    """Return the output: what stands under ``output``, else all of it but ``images``. Raises ReportedError for ``is_error``."""
    failed = is_true(envelope.get("is_error"))
    message = envelope.get("error")
    if "output" in envelope:
        output = envelope["output"]
    else:
        said = ("images", "is_error", "error") if failed else ("images",)
        output = {key: value for key, value in envelope.items() if key not in said}
    if not failed:
        return output
    raise ReportedError(NO_REASON if message in (None, "") else render_result(message), output, tool_name=tool_name)


def is_true(value: Any) -> bool:
    """Read ``is_error``: a truth value or its name. Whatever else it is says nothing, and is logged."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if value is not None and not isinstance(value, bool):
        _logger.warning("A tool answered is_error=%r, which is neither true nor false: it is passed over", value)
    return value is True
