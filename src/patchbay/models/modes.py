"""What was learnt of each model: if its server takes tools and ``tool_choice``, which roles, and if its prompt opens reasoning.

"auto" begins native. A server that refuses ``tools`` says so, and that settles it. A server that ignores them says nothing, so
the first answers without a call are questioned: unless the prompt's token count shows that the tools were in it, the model is
asked once more with the contract. A call in that second answer settles it; otherwise the question stays open and is asked again
at the 2nd, 4th, 8th … answer without a call, so that an open question costs little. Servers that are known to take tools are not
questioned (``doubts=False``); they may still refuse them.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from patchbay.legible import one_line, printable
from patchbay.models.roles import Roles

_MOST_MODELS = 1024
_MOST_READ = 4096
_SURE = 2
"""So many answers in a row show that a prompt opens the reasoning: one stray tag must not change what every client sees."""
_THING = r"(?:tools?|functions?|tool[ _-]?(?:use|usage|calls?|calling|choice)|function[ _-]?call(?:s|ing)?)"
_PART = r"(?!\s*[\[.]\s*\w)"  # "tools[0].function.name" is about what stands in the tools, not about tools
_FIELD = rf"\W+(?:tools|tool_choice|functions)\b{_PART}"
_EXTRA = r"extra (?:inputs?|fields?) (?:are )?not (?:permitted|allowed)"
_REFUSALS = (
    rf"(?:(?:not|n't) support|no support for) (?:\w+ ){{0,2}}['\"`]?{_THING}\b{_PART}",
    rf"\b{_THING}\b{_PART}['\"`]? (?:(?:is|are) )?(?:not |un)(?:yet )?(?:supported|available|enabled|implemented|allowed)",
    rf"unsupported (?:parameter|field|argument|feature)s?\W+{_THING}\b{_PART}",
    rf"(?:unrecogni[sz]ed|unknown|unexpected) (?:request )?(?:parameter|field|(?:keyword )?argument|key)s?(?: supplied)?{_FIELD}",
    rf"{_EXTRA}[^\[\]]*['\"](?:tools|tool_choice)['\"]",
    rf"['\"](?:tools|tool_choice)['\"]\W{{0,4}}(?:msg\W+)?{_EXTRA}",
    r"tool choice requires --",  # servers that were started without their tool parser
    r"tools param requires --",
    r"endpoints found that support tool use",
)
_REFUSAL = re.compile("|".join(_REFUSALS), re.IGNORECASE)
_REFUSAL_STATUSES = frozenset({400, 404, 405, 422, 500, 501})
_CHOICE = re.compile(r"\btool[_ ]?choice\b", re.IGNORECASE)


_LEARNT: Final = {
    "native": "takes tools natively",
    "text": "takes no tools: they are written into its prompt, and calls are read from its text",
}
_ROLES: Final = {
    Roles.ALL: "all are sent",
    Roles.NO_DEVELOPER: "developer is sent as system",
    Roles.SYSTEM_FIRST: "one system message is sent, in front",
    Roles.NO_SYSTEM: "instructions are sent as marked text of the user",
}
_logger = logging.getLogger(__name__)


class FormatUse(IntEnum):
    """Where a model's server takes ``response_format``."""

    BESIDE_TOOLS = 0
    ALONE = 1
    NEVER = 2


@dataclass(slots=True)
class _Model:
    mode: Literal["native", "text"] | None = None
    open_answers: int = 0
    unopened: int = 0
    choice_in_words: bool = False
    roles: Roles = Roles.ALL
    format_use: FormatUse = FormatUse.BESIDE_TOOLS


class ModeMemory:
    """One per upstream; bounded, the models unused for longest are forgotten. Not persisted: a restart learns anew.

    ``doubts``: this upstream may ignore tools without a word, so that answers without a call are questioned.
    """

    def __init__(self, *, doubts: bool = True) -> None:
        self._doubts = doubts
        self._models: OrderedDict[str, _Model] = OrderedDict()

    def _of(self, model: str) -> _Model:
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _Model()
            _logger.info("First request with tools for the model %s", _shown(model))
            if len(self._models) > _MOST_MODELS:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end(model)
        return known

    def mode(self, model: str) -> Literal["native", "text"] | None:
        """What is known of a model, or None."""
        return self._of(model).mode

    def learn(self, model: str, mode: Literal["native", "text"]) -> None:
        """Settle how a model takes tools."""
        known = self._of(model)
        if known.mode != mode:
            known.mode = mode
            _logger.info("The model %s %s", _shown(model), _LEARNT[mode])

    def probe_due(self, model: str) -> bool:
        """Whether an answer without a call is to be questioned now: the 1st, 2nd, 4th, 8th … of a model not settled."""
        known = self._of(model)
        if known.mode is not None or not self._doubts:
            return False
        number = known.open_answers + 1
        return number & (number - 1) == 0

    def left_open(self, model: str) -> None:
        """An answer without a call that settled nothing."""
        self._of(model).open_answers += 1

    def choice_in_words(self, model: str) -> bool:
        """Whether the model's server refused a ``tool_choice``: it is then asked for in words."""
        return self._of(model).choice_in_words

    def ask_choice_in_words(self, model: str) -> None:
        """Note that the model's server refused a ``tool_choice``."""
        known = self._of(model)
        if not known.choice_in_words:
            known.choice_in_words = True
            _logger.info("The server of the model %s takes no tool_choice: it is asked for in the prompt", _shown(model))

    def roles(self, model: str) -> Roles:
        """Which roles of messages the model's server takes."""
        return self._of(model).roles

    def learn_roles(self, model: str, roles: Roles) -> None:
        """Note which roles of messages the model's server takes."""
        known = self._of(model)
        if known.roles is not roles:
            known.roles = roles
            _logger.info("The server of the model %s does not take all roles of messages: %s", _shown(model), _ROLES[roles])

    def format_use(self, model: str) -> FormatUse:
        """Where the model's server takes ``response_format``."""
        return self._of(model).format_use

    def learn_format_use(self, model: str, use: FormatUse) -> None:
        """Note where the model's server takes ``response_format``."""
        known = self._of(model)
        if known.format_use is not use:
            known.format_use = use
            where = "beside tools" if use is FormatUse.ALONE else "at all"
            _logger.info("The server of the model %s takes no response_format %s", _shown(model), where)

    def prefilled(self, model: str) -> bool:
        """Whether the model's prompt opens the reasoning."""
        return self._of(model).unopened >= _SURE

    def note_reasoning(self, model: str, *, unopened: bool) -> None:
        """Note whether an answer closed a reasoning that it had not opened."""
        known = self._of(model)
        known.unopened = min(known.unopened + 1, _SURE) if unopened else 0


def _shown(model: str) -> str:
    return printable(one_line(str(model), 200))


def refuses_tools(status: int, text: str) -> bool:
    """Whether an upstream's error says that it takes no tools, and not that something in them or elsewhere is wrong."""
    return status in _REFUSAL_STATUSES and _REFUSAL.search(text[:_MOST_READ]) is not None


def refuses_choice(status: int, text: str) -> bool:
    """Whether an upstream's error, answering a request with a ``tool_choice``, is about that."""
    return status in (400, 422) and _CHOICE.search(text[:_MOST_READ]) is not None


def tools_were_seen(prompt_tokens: int | None, *, message_chars: int, messages: int) -> bool:
    """Whether a prompt of so many tokens held more than the messages, which were nothing but text.

    No tokenizer needs more than one token a character but for the frame around each message (16 tokens) and a default system
    prompt (64). A small count proves nothing: there are servers that count only what was not in their cache.
    """
    return bool(prompt_tokens) and (prompt_tokens or 0) > message_chars + 16 * messages + 64
