"""What was learnt of each model: whether its server takes tools, and whether its prompt opens the reasoning.

"auto" begins native. A server that refuses ``tools`` says so, and that settles it. A server that ignores them says nothing, so
the first answers without a call are looked at: by the prompt's token count where the server tells it, else by asking once more
with the contract. A call in that second answer settles it; otherwise the question stays open and is asked again at the 2nd,
4th, 8th … answer without a call, so that an open question costs little.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

_MOST_MODELS = 1024
_ABOUT_TOOLS = re.compile(r"\btools?\b|tool[_ -]?(?:choice|calls?)|function[_ -]?call", re.IGNORECASE)
_REFUSAL = re.compile(
    r"not (?:\w+ )?(?:support|permitted|allowed|enabled|available|implement)|n't support|unsupported|no support|requires?\b"
    r"|enable|unrecogni[sz]ed|unknown|unexpected|extra (?:field|input)|no endpoints",
    re.IGNORECASE,
)
_REFUSAL_STATUSES = frozenset({400, 404, 405, 422, 500, 501})


@dataclass(slots=True)
class _Model:
    mode: Literal["native", "text"] | None = None
    open_answers: int = 0
    prefilled: bool = False


class ModeMemory:
    """One per upstream; bounded, the models unused for longest are forgotten. Not persisted: a restart learns anew."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, _Model] = OrderedDict()

    def _of(self, model: str) -> _Model:
        known = self._models.get(model)
        if known is None:
            known = self._models[model] = _Model()
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
        self._of(model).mode = mode

    def probe_due(self, model: str) -> bool:
        """Whether an answer without a call is to be questioned now: the 1st, 2nd, 4th, 8th … of a model not settled."""
        known = self._of(model)
        if known.mode is not None:
            return False
        number = known.open_answers + 1
        return number & (number - 1) == 0

    def left_open(self, model: str) -> None:
        """An answer without a call that settled nothing."""
        self._of(model).open_answers += 1

    def prefilled(self, model: str) -> bool:
        """Whether the model's prompt opens the reasoning."""
        return self._of(model).prefilled

    def learn_prefilled(self, model: str, *, prefilled: bool) -> None:
        """Note what the last answer showed."""
        self._of(model).prefilled = prefilled


def refuses_tools(status: int, text: str) -> bool:
    """Whether an upstream's error says that it takes no tools (not that something else in the request is wrong)."""
    return status in _REFUSAL_STATUSES and bool(_ABOUT_TOOLS.search(text)) and bool(_REFUSAL.search(text))


def tools_were_seen(prompt_tokens: int | None, *, message_chars: int, tool_chars: int, messages: int, plain: bool) -> bool | None:
    """Whether a prompt of so many tokens held the tools: True, False, or None where the count does not tell.

    No tokenizer packs more than nine characters of such text into a token on average, and none needs more than one a character
    but for the frame around each message (16 tokens) and a default system prompt (64). ``plain``: nothing but text was sent.
    """
    if not prompt_tokens:
        return None
    if prompt_tokens * 9 < message_chars + tool_chars:
        return False
    if plain and prompt_tokens > message_chars + 16 * messages + 64:
        return True
    return None
