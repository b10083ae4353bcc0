"""What becomes of the files of a tool's output: refs that hold, words for the model, and what it is shown.

What lives here: the way from what a tool or a hook names to a store's refs and from there to attachments. What does not: when
that is done (``patchbay.executor``), and how the user is given files (whoever takes the turn's events, by ``MediaStore.open``).

All of it reads and writes files, so it belongs into a thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from patchbay.media.errors import MediaError, excerpt_of
from patchbay.media.inline import MOST, Piece, left_out, without_inline
from patchbay.media.kinds import SHOWABLE, UNKNOWN
from patchbay.media.meta import Media, MediaMeta
from patchbay.media.store import MediaStore
from patchbay.tools.output import ToolOutput
from patchbay.types import Attachment

MOST_MEDIA: Final = 32
"""How many files one output may have."""

MOST_SHOWN: Final = 20 * 1024 * 1024
"""How many bytes of one result a model is shown as attachments, all together."""

_NOT_DELIVERED: Final = "failed to deliver attachment: "
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose files these are: of the tool of this name, in this session and turn ("" where there is none)."""

    tool: str
    session: str = ""
    turn: str = ""

    def scope(self, how: str) -> str:
        """Return the scope of files that came in this way ("media", "inline")."""
        return ":".join(("tool", how, self.tool, *(each for each in (self.session, self.turn) if each)))

    def meta(self, content_type: str = "", filename: str = "") -> MediaMeta:
        """Return what is said of such a file."""
        return MediaMeta(filename, content_type, self.tool, session=self.session)


def settled(store: MediaStore, output: ToolOutput, origin: Origin) -> ToolOutput:
    """Return an output whose media are all refs of the store that hold, and whose words say so.

    Where the answer is for the user and one of its files cannot be had, nothing of it is delivered: the output is an error then,
    and the model goes on. Otherwise such a file is left out, and the model is told. The model is told of those that it may be
    shown by their paths, or their refs where the files are the store's own.
    """
    found: list[Media] = []
    failures: list[str] = []
    refs: list[str] = []
    for entry in output.media[:MOST_MEDIA]:
        try:
            refs.append(store.admit(entry, meta=origin.meta(), scope=origin.scope("media")))
        except MediaError as error:
            failures.append(str(error))
    for ref in refs:  # when all are in: the store may have had no room for them together
        try:
            store.open(ref).close()
            found.append(store.lookup(ref))
        except MediaError as error:
            failures.append(str(error))
    if len(output.media) > MOST_MEDIA:
        failures.append(f"{len(output.media)} files are too many: at most {MOST_MEDIA} can go along")
    if output.is_error:
        output = replace(output, for_llm=lifted(store, output.for_llm, origin)[0])
    elif output.response_handled:
        return _for_user(store, output, found, failures, origin)
    text, rest = placed(output.for_llm, found)
    if failures:
        _logger.warning("Files of a result of the tool %r are left out: %s", origin.tool, "; ".join(failures))
        text = f"{text}\n(Left out, since they cannot be had: {'; '.join(failures)})".lstrip("\n")
    tags = tuple(media.tag for media in rest) or output.artifact_tags
    return replace(output, for_llm=text, media=tuple(media.ref for media in found), artifact_tags=tags)


def _for_user(store: MediaStore, output: ToolOutput, found: Sequence[Media], failures: list[str], origin: Origin) -> ToolOutput:
    refs = [media.ref for media in found]
    try:
        refs += [
            store.put(each.data, origin.meta(each.media_type, each.name or ""), origin.scope("media"))
            for each in output.attachments
        ]
        for ref in refs:
            store.lookup(ref)  # those that came last may have pushed out the first
    except MediaError as error:
        failures.append(str(error))
    if not failures:
        return replace(output, media=tuple(refs), attachments=())
    _logger.warning("An answer of the tool %r is not delivered: %s", origin.tool, "; ".join(failures))
    why = f"{_NOT_DELIVERED}{'; '.join(failures)}"
    return replace(output, for_llm=why, is_error=True, response_handled=False, media=(), attachments=(), artifact_tags=())


def placed(text: str, media: Iterable[Media]) -> tuple[str, list[Media]]:
    """Return a text that names files, and those that it does not name: files by their path, which there are other words for.

    A file takes the first place that was left for one of its kind, ``[image]`` or ``[image: a photo]``. The refs of others stand
    behind the text, or before it where it is JSON.
    """
    rest: list[Media] = []
    for each in media:
        place = re.search(rf"\[{each.kind}(?:: [^\]\n]{{0,200}})?\]", text)
        if place is not None:
            text = f"{text[: place.start()]}{each.tag}{text[place.end() :]}"
        elif not each.is_own:
            rest.append(each)
        elif text.startswith("{"):
            text = f"{each.tag}\n{text}"
        else:
            text = f"{text} {each.tag}" if text else each.tag
    return text, rest


def lifted(store: MediaStore, text: str, origin: Origin) -> tuple[str, list[str]]:
    """Return a text whose base64 has been put into the store, each piece's tag in its place, and their refs."""
    refs: list[str] = []

    def put(piece: Piece) -> str:
        if len(refs) >= MOST:
            return left_out(piece)
        try:
            ref = store.put(piece.data, origin.meta(piece.media_type), origin.scope("inline"))
        except MediaError as error:
            _logger.warning("Base64 in a result of the tool %r is left out: %s", origin.tool, error)
            return left_out(piece)
        refs.append(ref)
        return store.lookup(ref).tag

    return without_inline(text, put), refs


def shown(
    store: MediaStore, text: str, refs: Iterable[str], kinds: Collection[str], origin: Origin
) -> tuple[str, tuple[Attachment, ...]]:
    """Return a result's text without its base64, and as attachments that and the files of ``refs``."""
    text, found = lifted(store, text, origin)
    attachments, notes = attached(store, (*refs, *found), kinds)
    return "\n".join((text, *(f"({note})" for note in notes))), tuple(attachments)


def attached(store: MediaStore, refs: Iterable[str], kinds: Collection[str]) -> tuple[list[Attachment], list[str]]:
    """Return the files of refs as attachments, and what is to be said of those that cannot be shown.

    Those of kinds that the model does not take come without their bytes: nobody will look at them.
    """
    taken: list[Attachment] = []
    notes: list[str] = []
    room = MOST_SHOWN
    for ref in refs:
        try:
            media = store.lookup(ref)
            empty = _attachment(media, b"")
            if empty.kind not in kinds:
                taken.append(empty)
                continue
            with store.open(ref) as file:
                if file.size > room:
                    most = MOST_SHOWN // (1024 * 1024)
                    notes.append(f"{excerpt_of(media.filename or ref)} is not shown: a result's files may have {most} MiB in all")
                    continue
                room -= file.size
                taken.append(replace(empty, data=file.read()))
        except MediaError as error:
            notes.append(f"{excerpt_of(ref)} is not shown: {error}")
    return taken, notes


def _attachment(media: Media, data: bytes) -> Attachment:
    # An image that no model takes is refused with the whole request; as a file it may be of use.
    is_odd = media.media_type.startswith("image/") and media.media_type not in SHOWABLE
    return Attachment(data, UNKNOWN if is_odd else media.media_type, media.filename or None)
