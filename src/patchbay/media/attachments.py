"""Files of tool results: stored as refs, named in the result's text, and attached for the model.

Every function reads or writes files: call it in a thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from patchbay.media.content import IMAGE_TYPES, OCTET_STREAM, Base64Match, omission_note, replace_base64
from patchbay.media.files import MediaError, excerpt_of
from patchbay.media.store import Media, MediaMeta, MediaStore
from patchbay.tools.output import ToolOutput
from patchbay.types import Attachment

MAX_MEDIA: Final = 32
"""Files of one result, and pieces of base64 that are extracted from its text."""

MAX_ATTACHED: Final = 20 * 1024 * 1024
"""Bytes of one result that a model is sent as attachments."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The tool, session and turn ("" if there is none) that files come from."""

    tool: str
    session: str = ""
    turn: str = ""

    def scope(self, kind: str) -> str:
        """Return the scope of files that came as "media" or "inline"."""
        return ":".join(("tool", kind, self.tool, *(each for each in (self.session, self.turn) if each)))

    def meta(self, content_type: str = "", filename: str = "") -> MediaMeta:
        """Return the metadata of a file."""
        return MediaMeta(filename, content_type, self.tool, session=self.session)


def store_media(store: MediaStore, output: ToolOutput, origin: FileOrigin) -> ToolOutput:
    """Return an output whose media are refs of the store, with their tags in its text.

    A file that is not available is left out, and the text says so; but if the output is the answer for the user, it becomes an
    error, and nothing of it is delivered. Files are named to the model by their path, or by their ref if the store wrote them.
    """
    found: list[Media] = []
    failures: list[str] = []
    refs: list[str] = []
    for entry in output.media[:MAX_MEDIA]:
        try:
            refs.append(store.admit(entry, meta=origin.meta(), scope=origin.scope("media")))
        except MediaError as error:
            failures.append(str(error))
    for ref in refs:  # after all were admitted, since the store may not take all of them
        try:
            store.open(ref).close()
            found.append(store.lookup(ref))
        except MediaError as error:
            failures.append(str(error))
    if len(output.media) > MAX_MEDIA:
        failures.append(f"{len(output.media)} files are too many: at most {MAX_MEDIA} can go along")
    if output.is_error:
        output = replace(output, for_llm=_store_base64(store, output.for_llm, origin)[0])
    elif output.response_handled:
        return _for_user(store, output, found, failures, origin)
    text, rest = insert_tags(output.for_llm, found)
    if failures:
        _logger.warning("Files of a result of the tool %r are left out: %s", origin.tool, "; ".join(failures))
        text = f"{text}\n(Left out, not available: {'; '.join(failures)})".lstrip("\n")
    tags = tuple(media.tag for media in rest) or output.artifact_tags
    return replace(output, for_llm=text, media=tuple(media.ref for media in found), artifact_tags=tags)


def _for_user(
    store: MediaStore, output: ToolOutput, found: Sequence[Media], failures: list[str], origin: FileOrigin
) -> ToolOutput:
    refs = [media.ref for media in found]
    try:
        refs += [
            store.put(each.data, origin.meta(each.media_type, each.name or ""), origin.scope("media"))
            for each in output.attachments
        ]
        for ref in refs:
            store.lookup(ref)  # the last ones may have evicted the first
    except MediaError as error:
        failures.append(str(error))
    if not failures:
        return replace(output, media=tuple(refs), attachments=())
    _logger.warning("An answer of the tool %r is not delivered: %s", origin.tool, "; ".join(failures))
    why = f"failed to deliver attachment: {'; '.join(failures)}"
    return replace(output, for_llm=why, is_error=True, response_handled=False, media=(), attachments=(), artifact_tags=())


def insert_tags(text: str, media: Iterable[Media]) -> tuple[str, list[Media]]:
    """Return a text that names files, and the files that it does not name (those not written by the store).

    A file takes the first placeholder of its kind, ``[image]`` or ``[image: a photo]``. The other refs follow the text, or
    precede it if it is JSON.
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


def _store_base64(store: MediaStore, text: str, origin: FileOrigin) -> tuple[str, list[str]]:
    """Move base64 from a text into the store; return the text with tags in its place, and the refs."""
    refs: list[str] = []

    def put(match: Base64Match) -> str:
        if len(refs) >= MAX_MEDIA:
            return omission_note(match)
        try:
            ref = store.put(match.data, origin.meta(match.media_type), origin.scope("inline"))
        except MediaError as error:
            _logger.warning("Base64 in a result of the tool %r is left out: %s", origin.tool, error)
            return omission_note(match)
        refs.append(ref)
        return store.lookup(ref).tag

    return replace_base64(text, put), refs


def attach_media(
    store: MediaStore, text: str, refs: Iterable[str], kinds: Collection[str], origin: FileOrigin
) -> tuple[str, tuple[Attachment, ...]]:
    """Return a result's text without base64, and as attachments that base64 and the files of ``refs``.

    Files of kinds that the model does not accept have no data. A note in the text names those that cannot be attached.
    """
    text, inline = _store_base64(store, text, origin)
    attachments: list[Attachment] = []
    left = MAX_ATTACHED
    for ref in (*refs, *inline):
        try:
            media = store.lookup(ref)
            # An image of another type would be refused with the whole request; as a file it may be of use.
            is_unusual = media.media_type.startswith("image/") and media.media_type not in IMAGE_TYPES
            attachment = Attachment(b"", OCTET_STREAM if is_unusual else media.media_type, media.filename or None)
            if attachment.kind in kinds:
                with store.open(ref) as file:
                    if file.size > left:
                        limit = f"a result's files may have {MAX_ATTACHED // (1024 * 1024)} MiB in all"
                        text += f"\n({excerpt_of(media.filename or ref)} is not shown: {limit})"
                        continue
                    attachment = replace(attachment, data=file.read())
                    left -= file.size
            attachments.append(attachment)
        except MediaError as error:
            text += f"\n({excerpt_of(ref)} is not shown: {error})"
    return text, tuple(attachments)
