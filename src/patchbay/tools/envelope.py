"""The response envelope of tools in other processes, and its images."""

from __future__ import annotations

import binascii
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from patchbay.errors import ToolError
from patchbay.tools.results import render_result
from patchbay.types import Attachment, Illustrated

MOST_IMAGES: Final = 2
"""The most images that are taken from one envelope."""

MOST_CHARS: Final = 2 * 1024 * 1024
"""The most characters of base64 in an image of an envelope."""

MOST_WIDTH, MOST_HEIGHT = 3840, 2160
"""The largest size of an image of an envelope, in pixels."""

MOST_PROMPT: Final = 2000
"""The most characters of a ``vision_prompt``."""

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JPEG: Final = b"\xff\xd8\xff"
# All markers of frame headers; DHT (C4), JPG (C8) and DAC (CC) are other segments.
_JPEG_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_NAMES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
_DATA_MEMBERS: Final = ("data", "base64", "image", "b64_json", "image_base64", "url")
_TYPE_MEMBERS: Final = ("mime_type", "mime", "media_type", "content_type", "mimeType")


def image_type(head: bytes) -> str:
    """Return the media type of an image by its first bytes: PNG or JPEG; "" for others."""
    if head.startswith(_PNG):
        return "image/png"
    return "image/jpeg" if head.startswith(_JPEG) else ""


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height in pixels from the header of a PNG or JPEG; None if it is invalid."""
    if data.startswith(_PNG):
        if data[12:16] != b"IHDR" or len(data) < 24:
            return None
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    return _jpeg_size(data) if data.startswith(_JPEG) else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Return the size in the first frame header, which follows segments with a length each."""
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        if data[place + 1] in _JPEG_FRAMES:
            height, width = data[place + 5 : place + 7], data[place + 7 : place + 9]
            return int.from_bytes(width, "big"), int.from_bytes(height, "big")
        is_padding = data[place + 1] == 0xFF
        place += 1 if is_padding else 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return None


class ImageError(ValueError):
    """An image of an envelope is invalid; the message says why."""


def with_images(output: Any, images: Any) -> tuple[Any, tuple[Attachment, ...]]:
    """Return the images of an envelope as attachments, and its output.

    Problems of images that are left out are added to the output as ``_image_warnings``, and the images' ``vision_prompt`` as
    ``_vision_prompts``. An output that is not an object then becomes the ``result`` of one.
    """
    if not isinstance(images, list | tuple):
        return _with_member(output, "_image_warnings", ["images must be a list"]), ()
    taken: list[Attachment] = []
    warnings: list[str] = []
    prompts: list[str] = []
    if len(images) > MOST_IMAGES:
        warnings.append(f"{len(images)} images: only the first {MOST_IMAGES} are taken")
    for number, image in enumerate(images[:MOST_IMAGES], 1):
        try:
            taken.append(_read(image, number))
        except ImageError as error:
            warnings.append(f"image {number}: {error}")
            continue
        prompt = image.get("vision_prompt") if isinstance(image, Mapping) else None
        if isinstance(prompt, str) and prompt:
            prompts.append(prompt[:MOST_PROMPT])
            if len(prompt) > MOST_PROMPT:
                warnings.append(f"image {number}: its vision_prompt is cut at {MOST_PROMPT} characters")
    if prompts:
        output = _with_member(output, "_vision_prompts", prompts)
    if warnings:
        output = _with_member(output, "_image_warnings", warnings)
    return output, tuple(taken)


def image_chars(images: Any) -> int:
    """Return the number of characters of base64 in the images of an envelope, valid or not."""
    texts = map(_text_of, images) if isinstance(images, list | tuple) else ()
    return sum(len(text) for text in texts if isinstance(text, str))


def _text_of(image: Any) -> Any:
    if not isinstance(image, Mapping):
        return image
    return next((image[name] for name in _DATA_MEMBERS if isinstance(image.get(name), str)), None)


def _read(image: Any, number: int) -> Attachment:
    declared, text = "", _text_of(image)
    if isinstance(image, Mapping):
        declared = next((image[name] for name in _TYPE_MEMBERS if isinstance(image.get(name), str)), "")
    if not isinstance(text, str):
        raise ImageError('it must be {"data": base64, "mime_type": ...}')
    if text[:5].lower() == "data:":
        head, _, text = text.partition(",")
        if not head.lower().endswith(";base64"):
            raise ImageError("its data URL must be base64")
        declared = declared or head[5:].partition(";")[0]
    if len(text) > MOST_CHARS:
        raise ImageError(f"its base64 is larger than {MOST_CHARS // (1024 * 1024)} MiB")
    try:
        data = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise ImageError("it is not valid base64") from None
    if not (found := image_type(data)):
        raise ImageError("it is neither JPEG nor PNG")
    claimed = declared.strip().lower()
    if claimed and _NAMES.get(claimed, claimed) != found:
        raise ImageError(f"it is said to be {claimed[:50]}, and is {found}")
    size = image_size(data)
    if size is None or not all(size):
        raise ImageError("it does not say how large it is")
    if size[0] > MOST_WIDTH or size[1] > MOST_HEIGHT:
        raise ImageError(f"it is {size[0]}x{size[1]} pixels, and may be {MOST_WIDTH}x{MOST_HEIGHT}")
    return Attachment(data, found, f"image {number}")


def _with_member(output: Any, name: str, value: Any) -> dict[str, Any]:
    return {**(output if isinstance(output, Mapping) else {"result": output}), name: value}


NO_REASON: Final = "the tool failed and did not say why"

_CODE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""A valid error code: one word."""

_logger = logging.getLogger(__name__)


class ReportedError(ToolError):
    """A tool reported an error. The model gets the message and ``output``, which the tool returned with it.

    ``code`` is the tool's error code if it is a word of up to 64 letters, digits, ``_``, ``.`` and ``-``, else the default one.
    ``ran`` is whether its handler ran, as the tool reports it: "no", "yes" or "unknown".
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
        """The message and the output as one JSON object; an ``error`` in the output replaces the message."""
        output = self.output
        if isinstance(output, Mapping):
            return render_result({"error": str(self), **output})
        return render_result({"error": str(self)} if output is None else {"error": str(self), "output": output})


def is_envelope(value: Any) -> bool:
    """Whether a handler's value is an envelope: a dict with ``is_error``, or with both ``output`` and ``images``.

    Any other dict is plain data, even ``{"output": 1}``.
    """
    return isinstance(value, Mapping) and ("is_error" in value or ("output" in value and "images" in value))


def unwrap_tool_response(envelope: Mapping[str, Any], *, tool_name: str = "") -> Any:
    """Return the envelope's ``output``, else all of it but ``images``; as an Illustrated if it has valid images.

    Raises ReportedError for ``is_error``.
    """
    failed = is_true(envelope.get("is_error"), tool_name=tool_name)
    message = envelope.get("error")
    if "output" in envelope:
        output = envelope["output"]
    else:
        meta = ("images", "is_error", "error") if failed else ("images",)
        output = {key: value for key, value in envelope.items() if key not in meta}
    if not failed:
        images = envelope.get("images")
        return _with_images(output, images) if images else output
    reason = NO_REASON if message in (None, "") else render_result(message)
    raise ReportedError(reason, output, tool_name=tool_name, code=envelope.get("code"), ran=envelope.get("ran"))


def _with_images(output: Any, images: Any) -> Any:
    output, attachments = with_images(output, images)
    return Illustrated(output, attachments) if attachments else output


def is_true(value: Any, *, tool_name: str = "") -> bool:
    """Read ``is_error``: a boolean or its name. Any other value counts as false, and is logged with the tool's name."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if value is not None and not isinstance(value, bool):
        who = f"The tool {tool_name!r}" if tool_name else "A tool"
        _logger.warning("%s returned is_error=%r, which is neither true nor false: ignored", who, value)
    return value is True
