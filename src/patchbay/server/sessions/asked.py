"""What a client asks for when it opens a session: its URL's query, checked. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal
from urllib.parse import parse_qsl

from patchbay.errors import InvalidRequestError
from patchbay.realtime.config import RealtimeSettings
from patchbay.realtime.providers.registry import dialect_for
from patchbay.server.sessions.settings import SessionsSettings
from patchbay.server.tools.chat.role import SESSION_HEADER, checked_session, session_of

PATH: Final = "/api/sessions/"

SUBPROTOCOL: Final = "patchbay"

_LONGEST_INSTRUCTIONS: Final = 16_000
_LONGEST_NAME: Final = 200
_CHOICES: Final = {"audio": ("json", "binary"), "output": ("audio", "text"), "takeover": ("0", "1"), "detect_turns": ("0", "1")}
_KNOWN: Final = frozenset({"realtime", "model", "instructions", "session", "voice", *_CHOICES})
_MODEL: Final = re.compile(r"[!-~]*")


class NoModelError(InvalidRequestError):
    """The server has no model of the kind that was asked for."""

    code = "no_model"


@dataclass(frozen=True)
class Asked:
    """A session as a client wants it. ``model`` is "" for the server's own. ``binary``: audio comes as binary frames.

    ``takeover``: it takes over from the one that the role has. ``session`` is the key that the client gave it. With
    ``detect_turns`` false its model does not hear when the user has ended: the client says so.
    """

    role: str
    kind: Literal["realtime", "offline"]
    model: str = ""
    instructions: str = ""
    voice: str | None = None
    output: Literal["audio", "text"] | None = None
    session: str = ""
    binary: bool = False
    takeover: bool = False
    detect_turns: bool = True


def role_in(path: str) -> str | None:
    """Return the role (as it is written) in the path of a session, None where it is none of one."""
    role = path.removeprefix(PATH).removesuffix("/")
    return role if path.startswith(PATH) and role and "/" not in role else None


def read_asked(role: str, query: bytes, headers: Sequence[tuple[bytes, bytes]], settings: SessionsSettings) -> Asked:
    """Read what a client asks for. Raises InvalidRequestError, NoModelError where the server does not have it."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except (ValueError, UnicodeError):
        raise InvalidRequestError("The query of the URL cannot be read.") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise InvalidRequestError("The query says something twice.")
    for name, value in given.items():
        if name not in _KNOWN:
            raise InvalidRequestError(
                f"{name!r:.50} is nothing that a session can be asked for. Known are {', '.join(sorted(_KNOWN))}."
            )
        if name in _CHOICES and value not in _CHOICES[name]:
            raise InvalidRequestError(f"{name} is {' or '.join(_CHOICES[name])}, not {value!r:.50}.")
    for name in ("realtime", "model", "voice"):
        value = given.get(name, "")
        if len(value) > _LONGEST_NAME or not _MODEL.fullmatch(value):
            raise InvalidRequestError(f"{name} must be up to {_LONGEST_NAME} ASCII characters without blanks.")
    if len(given.get("instructions", "")) > _LONGEST_INSTRUCTIONS:
        raise InvalidRequestError(f"instructions must be up to {_LONGEST_INSTRUCTIONS} characters.")
    kind = _kind(given, settings)
    header = next((value for name, value in headers if name.lower() == SESSION_HEADER.lower().encode()), None)
    asked = Asked(
        role,
        kind,
        model=given.get("realtime" if kind == "realtime" else "model", ""),
        instructions=given.get("instructions", ""),
        voice=given.get("voice"),
        output="text" if given.get("output") == "text" else "audio" if "output" in given else None,
        session=checked_session(given["session"]) if "session" in given else session_of(header),
        binary=given.get("audio") == "binary",
        takeover=given.get("takeover") == "1",
        detect_turns=given.get("detect_turns") != "0",
    )
    if asked.model and kind == "realtime":
        realtime_settings(asked, settings)  # says what is wrong with the name
    return asked


def realtime_settings(asked: Asked, settings: SessionsSettings) -> RealtimeSettings:
    """Return the settings of a realtime session. Raises ConfigurationError for a model of nobody's.

    Another model of the same provider is asked for at the same server; one of another provider at that provider's own.
    """
    own = settings.realtime
    assert own is not None
    made = own
    if asked.model:
        provider = dialect_for(own).provider
        named = replace(
            own, model=asked.model, provider="" if "/" in asked.model else provider, url=None, api_key=None, voice=None
        )
        same = dialect_for(named).provider == provider
        made = replace(own, model=asked.model, provider=provider) if same else replace(named, extra={})
    if asked.instructions:
        made = replace(made, instructions=asked.instructions)
    if asked.voice:
        made = replace(made, voice=asked.voice)
    if not asked.detect_turns:
        made = replace(made, detect_turns=False)
    return replace(made, output=asked.output) if asked.output is not None else made


def _kind(given: dict[str, str], settings: SessionsSettings) -> Literal["realtime", "offline"]:
    """A realtime model or a chat's: what the query names, else the realtime one where the server has that."""
    if "realtime" in given and "model" in given:
        raise InvalidRequestError("realtime and model are two kinds of session: name one.")
    wants_realtime = "realtime" in given or ("model" not in given and settings.realtime is not None)
    if wants_realtime and settings.realtime is None:
        raise NoModelError("This server has no realtime model: start it with patchbay serve --realtime openai/gpt-realtime.")
    if not wants_realtime and settings.upstream is None:
        raise NoModelError(
            "This server has no model for chats: start it with patchbay serve --upstream URL"
            f"{'' if settings.realtime is None else ', or talk to its realtime one, ?realtime='}."
        )
    return "realtime" if wants_realtime else "offline"
