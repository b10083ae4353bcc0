"""``GET /api/media/{id}``: the files of a media store over HTTP, for the user that a tool's output is for. Pure ASGI.

What lives here: the answer. What does not: where requests may come from (mount it behind ``server.tools.guard.Guard``), and the
files themselves (``patchbay.media``). The id is the part of a ref behind ``media://``.

What comes from tools is somebody else's: a browser is told to show images of formats that can hold no script, to save all else,
to believe the type that it is told, and to run nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import msgspec

from patchbay.errors import PatchbayError
from patchbay.media.content import IMAGE_TYPES, OCTET_STREAM, suffix_of
from patchbay.media.files import MediaError
from patchbay.media.store import SCHEME, Media, MediaStore, OpenMedia
from patchbay.server.answers import AuthenticationError, MethodNotAllowedError, NotFoundError
from patchbay.server.headers import Headers
from patchbay.server.media_urls import PATH, is_signed
from patchbay.server.reply import Reply, Send
from patchbay.server.tools.guard import TRUSTED
from patchbay.server.watch import ClientLeftError

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.IGNORECASE)
_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ALWAYS: Final[Headers] = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"private, no-store"),
]
# What a browser could take for a page, a script or a style, whatever else it is told.
_ACTIVE: Final = re.compile(r"html|script|\bxml\b|\bxsl|\bcss\b|wasm|flash|manifest|^multipart/|^message/")

_logger = logging.getLogger(__name__)


class MediaDoor:
    """An ASGI app that serves the files of ``store``, or one range of a file's bytes, as players ask for.

    ``needs_token``: a request must have shown the token to the guard before it, or have a signed path. Files have no ETag and no
    date: a request with ``If-Range`` gets all, and other conditions are always met.
    """

    def __init__(self, store: MediaStore, *, needs_token: bool = False) -> None:
        self._store = store
        self._needs_token = needs_token

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:  # noqa: ARG002  (a GET has no body)
        """Serve one HTTP request. Raises OSError where a file ends before its end: the connection must be cut."""
        reply = Reply(send, _ALWAYS)
        try:
            file = await asyncio.to_thread(self._opened, scope)
        except PatchbayError as error:
            await _refuse(reply, error)
            return
        try:
            asked = _range(scope, file.size)
            if asked is None:
                await reply.whole(416, [(b"content-range", b"bytes */%d" % file.size)], b"")
                return
            start, end = asked
            headers = [*_described(file.media), (b"accept-ranges", b"bytes"), (b"content-length", b"%d" % (end - start))]
            is_all = end - start == file.size
            if not is_all:
                headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, file.size)))
            await reply.start(200 if is_all else 206, headers)
            if scope["method"] == "GET":
                pieces = file.pieces(start, end - start)
                while (piece := await asyncio.to_thread(_next, pieces)) is not None:
                    await reply.write(piece)
            await reply.finish()
        except ClientLeftError:
            return
        except MediaError as error:
            _logger.warning("A file could not be sent to its end: %s", error)
            raise OSError(str(error)) from error
        finally:
            file.close()

    def _opened(self, scope: Any) -> OpenMedia:
        if self._needs_token and scope.get(TRUSTED) is not True and not is_signed(scope):
            raise _UnauthorizedError("Unauthorized: show the token of this server, or use a signed path that has not expired.")
        if scope["method"] not in ("GET", "HEAD"):
            raise MethodNotAllowedError(f"The method {scope['method']} is not allowed here.")
        name = scope["path"].rpartition("/")[2]
        if not scope["path"].endswith(PATH + name) or not _ID.fullmatch(name):
            raise NotFoundError("Not found.")
        return self._store.open(SCHEME + name)


class _UnauthorizedError(AuthenticationError):
    code = "wrong_token"  # as the routes beside it say it


def _range(scope: Any, size: int) -> tuple[int, int] | None:
    """Return which bytes are asked for, from and up to; None where the file has none of them.

    All of them where no range is asked for, or several are, or one that is not understood.
    """
    asked = [value for name, value in scope["headers"] if name == b"range"]
    is_plain = scope["method"] == "GET" and len(asked) == 1 and not any(name == b"if-range" for name, _ in scope["headers"])
    found = _RANGE.fullmatch(asked[0].decode("latin-1").strip()) if is_plain else None
    first, last = found.groups() if found is not None else ("", "")
    if not (first or last) or (first and last and int(last) < int(first)):
        return 0, size
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last) + 1, size) if first and last else size
    return (start, end) if start < end else None


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)


async def _refuse(reply: Reply, error: PatchbayError) -> None:
    # What is wrong with a file names paths of this machine: that is for its operator.
    status = 404 if isinstance(error, MediaError) else error.status
    if isinstance(error, MediaError):
        _logger.info("A file was asked for and is not there: %s", error)
    headers: Headers = [(b"content-type", b"application/json")]
    if isinstance(error, MethodNotAllowedError):
        headers.append((b"allow", b"GET, HEAD"))
    if isinstance(error, AuthenticationError):
        headers.append((b"www-authenticate", b"Bearer"))
    said = "There is no such file (any more)." if isinstance(error, MediaError) else str(error)
    try:
        await reply.whole(status, headers, msgspec.json.encode({"detail": said, "error_code": error.code}))
    except ClientLeftError:
        return


def _described(media: Media) -> Headers:
    kind = media.media_type
    name = media.filename or f"{media.kind}{suffix_of(kind)}"
    plain = re.sub(r"[^A-Za-z0-9 ._-]", "_", name)[:100]
    how = "inline" if kind in IMAGE_TYPES else "attachment"
    disposition = f"{how}; filename=\"{plain}\"; filename*=UTF-8''{quote(name.encode('utf-8', 'replace')[:200], safe='')}"
    told = OCTET_STREAM if _ACTIVE.search(kind) else kind
    return [(b"content-type", told.encode("ascii")), (b"content-disposition", disposition.encode("ascii"))]
