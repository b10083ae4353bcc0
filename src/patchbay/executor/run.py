"""What all calls of one run share: its budget, its slots, what it remembers of calls, and the results it keeps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from patchbay.executor.batch import Batch
from patchbay.executor.budget import Budget
from patchbay.executor.files import illustrated
from patchbay.executor.find import find_tool
from patchbay.executor.repeats import Repeats
from patchbay.executor.slots import Gate
from patchbay.media.content import MIN_URL, may_have_base64, omission_note, replace_base64
from patchbay.tools import Tool, render_result
from patchbay.tools.attachments import attachments_of, checked_kinds, described
from patchbay.tools.context import NOWHERE, Surroundings
from patchbay.tools.excerpt import excerpt
from patchbay.tools.kept import MemoryResultStore, ReadResult, ResultStore
from patchbay.tools.output import ToolOutput
from patchbay.types import Attachment, IncompleteCall, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.executor.execution import ToolExecution
    from patchbay.executor.executor import Executor
    from patchbay.hooks import TurnHooks
    from patchbay.media import MediaStore

_logger = logging.getLogger(__name__)
_NO_KINDS: Final[frozenset[str]] = frozenset()


class Run:
    """One run of an executor's tools, from a user's message to the answer; made by ``Executor.begin``.

    ``tools`` are those that the model may call now: the executor's, and a reader from the moment on when a result was too long to
    be shown whole, or from the start where one was in an earlier run. They are only ever added to, at the end, so that what a
    model was told stays a prefix of what it is told; whoever runs the turn may say otherwise (``use``).
    """

    def __init__(
        self,
        executor: Executor,
        *,
        budget: Budget | None = None,
        surroundings: Surroundings = NOWHERE,
        attachments: Collection[str] = (),
        results: ResultStore | None = None,
        offer_reader: bool = False,
        tool_timeout: float | None = None,
        call_ids: set[str] | None = None,
        on_settled: Callable[[ToolExecution], None] | None = None,
        hooks: TurnHooks | None = None,
        media: MediaStore | None = None,
    ) -> None:
        self.executor = executor
        self.budget = budget if budget is not None else Budget()
        self.budget.start()
        self.surroundings = surroundings
        self.attachments = checked_kinds(attachments) if attachments else _NO_KINDS
        self.repeats = Repeats()
        self.tool_timeout = tool_timeout if tool_timeout is not None else executor.tool_timeout
        self.call_ids = call_ids if call_ids is not None else set()
        self.on_settled = on_settled
        self.hooks = hooks
        self.media = media if media is not None else executor.media
        self.slots = Gate(executor.max_parallel)
        self.tools: Mapping[str, Tool] = executor.tools
        self._results = results
        self._reader: ReadResult | None = None
        self._specs: tuple[ToolSpec, ...] | None = None
        self._lent: tuple[Mapping[str, Tool], Mapping[str, Tool]] | None = None
        self.is_withdrawn = False
        """Whether the model may call no tool of this run any more: it is asked for a closing answer."""
        if offer_reader and results is not None:
            self._offered_reader(results)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told of the tools."""
        if self._specs is None:
            self._specs = tuple([tool.spec for tool in self.tools.values() if tool.offered])
        return self._specs

    def use(self, tools: Mapping[str, Tool]) -> None:
        """Let the model call these, by their names, from now on, and tell it of no others; none where they were withdrawn."""
        if not self.is_withdrawn:
            self.tools = tools
            self._specs = None

    def withdraw(self) -> None:
        """Let the model call nothing any more."""
        self._lent = None
        self.use({})
        self.is_withdrawn = True

    def lend(self, tools: Mapping[str, Tool]) -> None:
        """Do as ``use``, for this round."""
        if tools != dict(self.tools):
            self._lent = self.tools, tools
            self.use(tools)

    def take_back(self) -> None:
        """Begin a round: with what there is without tools that were lent, and what the run itself has added meanwhile."""
        if self._lent is not None:
            before, lent = self._lent
            self._lent = None
            self.use({**before, **{name: tool for name, tool in self.tools.items() if name not in lent}})

    def find(self, name: str) -> Tool:
        """Return the tool of this name. Raises UnknownToolError with the nearest names."""
        return find_tool(self.tools, name)

    def start(self, calls: Sequence[ToolCall | IncompleteCall], *, messages: Sequence[Message] = (), iteration: int = 1) -> Batch:
        """Start all of ``calls`` now, and return them as a Batch; the caller must ``stop()`` it when it is done with it.

        ``messages`` and ``iteration`` are for the tools' contexts. Needs a running event loop.
        """
        return Batch(self, calls, messages, iteration)

    def is_short(self, text: str) -> bool:
        """Whether a tool's text is what the model is shown of it, as it is."""
        limit = self.executor.max_result_chars
        is_whole = text.isascii() and (limit is None or len(text) <= limit)
        return is_whole and (len(text) < MIN_URL or not may_have_base64(text))

    async def rendered(self, value: Any, tool: str = "") -> tuple[str, tuple[Attachment, ...]]:
        """Return what the model is shown of a value of the tool of this name: a text, and what goes with it."""
        media: tuple[str, ...] = ()
        if type(value) is ToolOutput:
            content, attachments = value.text, value.attachments
            media = () if value.response_handled else value.media
        else:
            attachments = attachments_of(value)  # first: it says what is wrong with one
            content = render_result(value)
        if media or may_have_base64(content):
            content, files = await illustrated(self, content, media, tool)
            attachments += files
        limit = self.executor.max_result_chars
        if limit is not None and len(content) > limit:
            content = await self._kept(content, limit)
        if not attachments:
            return content, ()
        shown = tuple(each for each in attachments if each.kind in self.attachments)
        return described(content, attachments, shown), shown

    def shortened(self, text: str) -> str:
        """Return a text of no more than the limit, its middle left out if need be."""
        limit = self.executor.max_result_chars
        if may_have_base64(text):
            text = replace_base64(text, omission_note)
        return text if limit is None or len(text) <= limit else excerpt(text, limit)

    async def _kept(self, text: str, limit: int) -> str:
        """Keep a long result whole, offer the reader for it, and return head and tail."""
        if (results := self._results) is None:
            results = self._results = MemoryResultStore()
        try:
            result_id = await results.keep(text)
        except Exception:
            # The store is the caller's own. Without it the model still gets what it can be shown.
            _logger.exception("A result of %d characters could not be kept", len(text))
            return excerpt(text, limit)
        return excerpt(text, limit, how_to_read=self._offered_reader(results).advice(result_id))

    def _offered_reader(self, results: ResultStore) -> ReadResult:
        reader = self._reader
        if reader is None or self.tools.get(reader.name) is not reader:  # other tools may have been put in place meanwhile
            reader = ReadResult(results, {**self.executor.tools, **self.tools}, self.executor.max_result_chars)
            self._reader = reader
            self.use({**self.tools, reader.name: reader})
        return reader
