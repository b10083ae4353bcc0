"""Why a plugin could not be loaded, told to who wrote it: the reason, and where in the plugin's own files.

What lives here: an exception as a CRASH message. What does not: loading (``manifest``), and what the host makes of it.
"""

from __future__ import annotations

import importlib
import os
import traceback
from pathlib import Path
from typing import Final

from patchbay.plugins.errors import PluginError
from patchbay.plugins.messages import Crash
from patchbay.tools.results import describe, well_formed

_MOST_FRAMES: Final = 5
_MOST_CHARS: Final = 16 * 1024
_HERE: Final = str(Path(__file__).parent) + os.sep
_ELSEWHERE: Final = frozenset({"site-packages", "dist-packages"})

# What is written wrongly: a name, an import, a class, an option of @llm_tool. All else (a file that is not there, a server that
# does not answer) may be better the next time.
_LASTING: Final = (SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError, PluginError)


def crash_of(error: BaseException, folder: Path | None) -> Crash:
    """Return what the host is told of an exception that loading a plugin of ``folder`` (None: the import path) raised."""
    lasts = isinstance(error, _LASTING)
    said = _own_part(error, folder) if lasts else "".join(traceback.format_exception(_from_the_plugin_on(error)))
    reason = describe(error) if not isinstance(error, PluginError) else str(error)
    return Crash(error=well_formed(reason), traceback=well_formed(said[-_MOST_CHARS:]), lasts=lasts)


def _own_part(error: BaseException, folder: Path | None) -> str:
    """Format the last frames of the plugin's own files, and of a SyntaxError the line; empty where there is nothing to show."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    if not frames:
        return "".join(traceback.format_exception_only(error)) if isinstance(error, SyntaxError) else ""
    root = (folder or Path(frames[0].filename).parent).resolve()
    own = [frame for frame in frames if _is_in(Path(frame.filename), root)][-_MOST_FRAMES:]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(error)])


def _is_in(file: Path, root: Path) -> bool:
    file = file.resolve()
    return file.is_relative_to(root) and not _ELSEWHERE.intersection(file.relative_to(root).parts)


def _from_the_plugin_on(error: BaseException) -> BaseException:
    """Leave out how the plugin came to be imported, which is of no interest to who wrote it."""
    place = error.__traceback__
    while place is not None and _is_ours(place.tb_frame.f_code.co_filename):
        place = place.tb_next
    return error.with_traceback(place)


def _is_ours(file: str) -> bool:
    return file.startswith(("<frozen importlib", _HERE)) or file == importlib.__file__
