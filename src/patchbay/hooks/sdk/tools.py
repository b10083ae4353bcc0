"""The tools that a hook offers: functions, told to the host and called for it.

What lives here: a function as a definition, and its call as an output. What does not: schemas and how functions are called
(``patchbay.tools``).
"""

from __future__ import annotations

import base64
import inspect
import json
import mimetypes
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchbay.background import run_blocking
from patchbay.errors import ToolError
from patchbay.tools import FunctionTool, ToolContext, Validation, render_error
from patchbay.tools.output import OutputError, ToolOutput, as_output
from patchbay.tools.results import read_items
from patchbay.types import Attachment


class HookTool(FunctionTool):
    """A function as a tool of a hook. Its schema is made when it is first asked for."""

    def definition(self) -> dict[str, Any]:
        """Return what the host is told of it. Raises ConfigurationError for a function that no schema can be made of."""
        return self.spec.to_openai()

    def output(
        self, arguments: Mapping[str, Any], *, call_id: str = "", iteration: int = 1, media_dir: Path | None = None
    ) -> ToolOutput:
        """Call the function, and wait for it; what it raises is an output that says so to the model.

        Images and files that it returns are left in ``media_dir``, where the host has one. Blocks. A function that is async runs
        in the background loop (``patchbay.background``).
        """
        raw = json.dumps(arguments, ensure_ascii=False)
        context = ToolContext(call_id=call_id, name=self.name, raw_arguments=raw, iteration=iteration)
        try:
            value = self._value(self.validate(raw, Validation()), context)
            return _with_media(as_output(value), media_dir)
        except OutputError as error:
            return error.output
        except ToolError as error:
            return ToolOutput(error.for_model, is_error=True)
        except Exception as error:  # noqa: BLE001  (the author's function may raise what it likes)
            return ToolOutput(render_error(self.name, error), is_error=True)

    def _value(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        if self.is_async:
            return run_blocking(self.run(arguments, context))
        args, kwargs = self._binding(arguments, context)
        value = finished(self.function(*args, **kwargs))
        return read_items(value) if isinstance(value, Iterator) else value


def finished(value: Any) -> Any:
    """Return what a handler gave; what can be awaited, or read in an async way, is waited for. Blocks."""
    if inspect.isawaitable(value):
        return run_blocking(_awaited(value))
    return run_blocking(_read(value)) if isinstance(value, AsyncIterator) else value


async def _awaited(value: Any) -> Any:
    while inspect.isawaitable(value):
        value = await value
    return value


async def _read(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def _with_media(output: ToolOutput, folder: Path | None) -> ToolOutput:
    """Return an output whose images and files can be sent: as the paths of files, or as data URLs."""
    if not output.attachments:
        return output
    refs = (_data_url(each) if folder is None else _left_in(folder, each) for each in output.attachments)
    return replace(output, media=(*output.media, *refs), attachments=())


def _data_url(attachment: Attachment) -> str:
    return f"data:{attachment.media_type};base64,{base64.b64encode(attachment.data).decode()}"


def _left_in(folder: Path, attachment: Attachment) -> str:
    path = folder / f"{uuid.uuid4().hex}{mimetypes.guess_extension(attachment.media_type) or ''}"
    path.write_bytes(attachment.data)
    return str(path)
