"""Capabilities of models and their servers, learned from errors and answers.

"auto" begins native, unless llama.cpp's ``/props`` say that the model's template has no tools. A server that refuses ``tools``
reports an error. A server that drops them does not, so the first answers without a call are checked: unless the prompt's token
count shows whether the tools were in it, the model is asked once more with the tools in its prompt. A call in that second answer
decides; otherwise the check is repeated at the 2nd, 4th, 8th … answer without a call. Servers known to take tools are not checked
(``doubts=False``); they may still refuse them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

from patchbay._text import one_line, printable
from patchbay.constraints.backends import Backend, backend_of
from patchbay.models.roles import ROLES_IN_WORDS, Roles

_MOST_MODELS = 1024
_CONFIRMATIONS = 2
"""Answers in a row that show that a prompt opens the reasoning: one stray tag must not change the answers of all clients."""
_MODES: Final = {
    "native": "takes tools",
    "text": "takes no tools: they are written into the prompt, and calls are read from the model's text",
}
_logger = logging.getLogger(__name__)

Mode: TypeAlias = Literal["native", "text"]
"""How a model is given its tools: as the API's ``tools``, or in its prompt."""
Unsupported: TypeAlias = tuple[str, bytes]
"""What a server does not take: a parameter with its value as JSON, or a type of content parts with b""."""


class FormatUse(IntEnum):
    """When a model's server accepts ``response_format``."""

    BESIDE_TOOLS = 0
    ALONE = 1
    NEVER = 2


@dataclass(frozen=True)
class Accepted:
    """What a model's server accepts in a request, as far as it is known."""

    roles: Roles = Roles.ALL
    format_use: FormatUse = FormatUse.BESIDE_TOOLS
    tool_choice_in_words: bool = False
    """``tool_choice`` is refused and goes into the prompt."""
    constraint_alone: bool = False
    """A client's grammar is refused beside tools."""
    only_streams: bool = False
    """It answers in a stream only."""
    no_constraint: bool = False
    """A constraint of ours is refused."""
    not_added: frozenset[str] = frozenset()
    """The fields that may not be added to a request."""
    unsupported: frozenset[Unsupported] = frozenset()

    def describe(self, name: str) -> str:
        """Say what the field ``name`` means, "" for one that is not worth a line in the log."""
        if name == "roles":
            return f"does not take all roles of messages: {ROLES_IN_WORDS[self.roles]}"
        if name == "format_use":
            return f"takes no response_format {'beside tools' if self.format_use is FormatUse.ALONE else 'at all'}"
        if name == "tool_choice_in_words":
            return "takes no tool_choice: it is asked for in the prompt"
        if name == "no_constraint":
            return "refuses a grammar: calls are not constrained"
        if name == "unsupported":
            names = sorted(f"{each}={value.decode()}" if value else each for each, value in self.unsupported)
            return f"does not take {', '.join(names)}: left out from now on"
        return ""


class ModelCapabilities:
    """The known capabilities of one model at one server."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.open_answers = 0
        """How many answers without a call have decided nothing."""
        self._unopened = 0
        self.mode: Mode | None = None
        self.why = ""
        """What has shown the mode."""
        self.accepts = Accepted()
        self.refused: set[str] = set()
        """Names of parameters and message fields."""
        self.streams_usage: bool | None = None
        """It sends the usage in a stream; None: unknown."""
        self.all_reasoning = False
        """Each assistant message must carry its reasoning."""

    def learn_mode(self, mode: Mode, why: str) -> None:
        """Record how the model takes tools, and what has shown it."""
        if self.mode != mode:
            self.mode, self.why = mode, why
            self._log(_MODES[mode])

    def learn(self, changes: Mapping[str, Any]) -> None:
        """Record fields of ``accepts`` that a request has shown."""
        before, self.accepts = self.accepts, replace(self.accepts, **changes)
        for name, value in changes.items():
            if value != getattr(before, name) and (words := self.accepts.describe(name)):
                self._log(words)

    @property
    def limits(self) -> list[str]:
        """What its server does not take, in words."""
        accepts = self.accepts
        words = [accepts.describe(each.name) for each in fields(accepts) if getattr(accepts, each.name) != each.default]
        refused = [f"refuses {', '.join(sorted(self.refused))}: left out from now on"] if self.refused else []
        return [*(word for word in words if word), *refused]

    @property
    def probe_due(self) -> bool:
        """Whether to check an answer without a call now: the 1st, 2nd, 4th, 8th … of a model with no known mode."""
        number = self.open_answers + 1
        return self.mode is None and number & (number - 1) == 0

    @property
    def prefilled(self) -> bool:
        """Whether the model's prompt opens its reasoning."""
        return self._unopened >= _CONFIRMATIONS

    def note_reasoning(self, *, unopened: bool) -> None:
        """Note whether an answer closed a reasoning that it had not opened."""
        self._unopened = min(self._unopened + 1, _CONFIRMATIONS) if unopened else 0

    def _log(self, what: str) -> None:
        _logger.info("The server of the model %s %s", *(printable(one_line(text, 200)) for text in (self._name, what)))


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself. ``reasons``: its model's template has reasoning; None: unknown."""

    backend: Backend | None = None
    reasons: bool | None = None


class Capabilities:
    """The capabilities of one server's models. Shared by its clients, bounded, not persisted.

    ``doubts``: this server may drop tools without an error, so answers without a call are checked.
    """

    def __init__(self, *, doubts: bool = True) -> None:
        self.doubts = doubts
        self.server: ServerFacts | None = None if doubts else ServerFacts()
        """What the server says of itself; None until it has answered, if it is asked."""
        self._is_asked = False
        self._undescribed = 0
        self._mode: Mode | None = None
        self._models: OrderedDict[Any, ModelCapabilities] = OrderedDict()

    def begin_description(self, *, needed: bool) -> bool:
        """Whether to ask the server for its description now; ``learn_description`` or ``end_description`` follows.

        A server that cannot answer (it loads its model, say) is asked again at the 2nd, 4th, 8th … request, and by each that
        cannot go on without (``needed``). A request that comes while another one asks does not wait.
        """
        if self.server is not None or (self._is_asked and not needed):
            return False
        self._undescribed += 1
        self._is_asked = needed or self._undescribed & (self._undescribed - 1) == 0
        return self._is_asked

    def end_description(self) -> None:
        """Let the next request ask again, if there was no answer."""
        self._is_asked = False

    def learn_description(self, description: Any) -> None:
        """Record what a server says of itself: llama.cpp's ``/props``, or a list of models. None: it could not be asked.

        llama.cpp's template is that of its only model, whatever name that is requested by.
        """
        if not isinstance(description, Mapping):
            self.server = self.server or (None if description is None else ServerFacts())
            return
        caps, template = description.get("chat_template_caps"), description.get("chat_template")
        takes_tools = caps.get("supports_tools") if isinstance(caps, Mapping) else None
        if isinstance(takes_tools, bool):
            self._mode = "native" if takes_tools else "text"
        self.server = ServerFacts(backend_of(description), "</think>" in template if isinstance(template, str) else None)

    @property
    def models(self) -> list[tuple[Any, ModelCapabilities]]:
        """The models that were asked for, the last one at the end."""
        return list(self._models.items())

    def of(self, model: Any) -> ModelCapabilities:
        """Return the capabilities of a model."""
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = ModelCapabilities(str(model))
            _logger.info("First request for the model %s", printable(one_line(str(model), 200)))
            if len(self._models) > _MOST_MODELS:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        if known.mode is None and self._mode is not None:
            known.learn_mode(self._mode, f"llama.cpp says that its template has {'' if self._mode == 'native' else 'no '}tools")
        return known
