"""Files that go along with results: where a run's calls meet the media store.

What lives here: whose files they are, and the threads that read and write them. What does not: what becomes of them
(``patchbay.media.attachments``). Only what has files comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from patchbay.media.content import may_have_base64
from patchbay.tools.output import ToolOutput
from patchbay.tools.threads import run_in_thread
from patchbay.types import Attachment

if TYPE_CHECKING:
    from patchbay.executor.run import Run
    from patchbay.media import MediaStore
    from patchbay.media.attachments import Origin


def checked_media(given: Any) -> MediaStore | None:
    """Return the media store that somebody gave. Raises TypeError for what is none."""
    if given is None:
        return None
    from patchbay.media import MediaStore

    if not isinstance(given, MediaStore):
        raise TypeError(f"media must be a MediaStore, not {type(given).__name__}.")
    return given


def has_files(output: ToolOutput) -> bool:
    """Whether there is anything to be done about an output's files before it is one."""
    return bool(
        output.media or (output.response_handled and output.attachments) or (output.is_error and may_have_base64(output.for_llm))
    )


async def with_files(run: Run, output: ToolOutput, tool: str) -> ToolOutput:
    """Return an output whose media are refs that hold; an error where the user cannot be given what is for the user."""
    from patchbay.media.attachments import store_media

    store, origin = _store(run), _origin(run, tool)
    return await run_in_thread(lambda: store_media(store, output, origin))


async def illustrated(run: Run, text: str, refs: Sequence[str], tool: str) -> tuple[str, tuple[Attachment, ...]]:
    """Return a result's text without its base64, and as attachments that and the files of its refs."""
    from patchbay.media.attachments import attach_media

    store, origin = _store(run), _origin(run, tool)
    return await run_in_thread(lambda: attach_media(store, text, refs, run.attachments, origin))


def _store(run: Run) -> MediaStore:
    if (store := run.media) is not None:
        return store
    from patchbay.media import shared_store

    return shared_store()


def _origin(run: Run, tool: str) -> Origin:
    from patchbay.media.attachments import Origin

    around = run.surroundings
    session = getattr(around.invocation_context, "session_key", None)
    session, turn = session if isinstance(session, str) else "", around.invocation_id
    if (hooks := run.hooks) is not None:
        session, turn = hooks.scope.session_key or session, hooks.scope.turn_id or turn
    return Origin(tool, session, turn)
