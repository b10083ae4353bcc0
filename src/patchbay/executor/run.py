"""The state that all calls of one run share: budget, permits, tools, stored results and their files."""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

from patchbay.errors import ToolNotLoadedError, UnknownToolError
from patchbay.executor.callbacks import Callback
from patchbay.executor.limits import Budget, RepeatedCalls
from patchbay.executor.results import NAME_SHOWN, ToolExecution
from patchbay.media.content import MIN_URL, may_have_base64, omission_note, replace_base64
from patchbay.tools import Tool, Validation, render_result
from patchbay.tools.context import NO_SCOPE, AgentScope, Progress
from patchbay.tools.output import ToolOutput, attachments_of, checked_kinds, described
from patchbay.tools.result_store import MemoryResultStore, ReadResult, ResultStore
from patchbay.tools.results import excerpt
from patchbay.tools.search import SearchTools, ToolCatalog
from patchbay.tools.threads import run_in_thread
from patchbay.tools.tool import checked_timeout
from patchbay.types import Attachment, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from patchbay.executor.call_log import CallLog
    from patchbay.hooks import HookManager, HookScope, TurnHooks
    from patchbay.media import MediaStore
    from patchbay.media.attachments import FileOrigin


_logger = logging.getLogger(__name__)
_NO_KINDS: Final[frozenset[str]] = frozenset()


class RunOptions(TypedDict, total=False):
    """The options of a run; None is the same as no value."""

    budget: Budget | None
    agent_scope: AgentScope
    """The agent's part of the tools' contexts."""
    max_external_repeats: int | None
    """After how many equal results a call of an external tool is refused, None: never. See ``RepeatedCalls``."""
    attachments: Collection[str]
    """The kinds ("image", "audio", "file") that the model accepts; others are only announced to it."""
    results: ResultStore | None
    """Stores long results, by default in memory for this run."""
    offer_reader: bool
    """Offer the tool that reads long results from the start, since ``results`` has those of earlier runs."""
    tool_timeout: float | None
    """Replaces the executor's own."""
    call_ids: set[str] | None
    """Ids that the run's calls must not have; the run adds its own, and parallel agents share one set."""
    reserved: Collection[str]
    """Names of the caller's own tools, which a tool that the run adds must not have."""
    found: dict[str, None] | None
    """The names of the tools that searches of the session found; the run adds its own."""
    on_settled: Callable[[ToolExecution], None] | None
    """Called with each execution the moment the call settles, however slow the consumer is; its exceptions are logged."""
    scope: HookScope | None
    """Identifies the turn to hooks."""
    hooks: HookManager | None
    """Replaces the executor's own."""
    media: MediaStore | None
    """Replaces the executor's own."""
    call_log: CallLog | None
    """Records the calls' outcomes, for a run that goes on in another process."""


class ExecutorSettings:
    """The settings of an executor that its runs use."""

    tools: Mapping[str, Tool]
    catalog: ToolCatalog | None
    validation: Validation | None
    tool_timeout: float | None
    max_parallel: int
    cancel_grace: float
    max_repeats: int | None
    max_result_chars: int | None
    before: tuple[Callback, ...]
    on_progress: Callable[[ToolCall, Progress], object] | None
    media: MediaStore | None


class RunState:
    """The state that the calls of one run share.

    ``tools`` are those that the model may call now: the executor's, and a reader once a result was too long to be shown whole, or
    from the start where one was in an earlier run. Of an executor with a catalog they are the pinned ones, a search, and what was
    found. They are only ever added to, at the end, so that what a model was sent stays a prefix of what it is sent; the turn may
    replace them (``set_tools``).
    """

    def __init__(self, executor: ExecutorSettings, options: RunOptions, hooks: TurnHooks | None = None) -> None:
        self.executor = executor
        self.budget = options.get("budget") or Budget()
        self.budget.start_clock()
        self.agent_scope = options.get("agent_scope", NO_SCOPE)
        self.attachments = checked_kinds(kinds) if (kinds := options.get("attachments")) else _NO_KINDS
        self.repeats = RepeatedCalls()
        self._max_external_repeats = options.get("max_external_repeats")
        self.refused: dict[str, int] = {}
        """The ids of refused calls of external tools, each with how often it gave the same result."""
        timeout = options.get("tool_timeout")
        self.tool_timeout = checked_timeout(timeout, "tool_timeout") if timeout is not None else executor.tool_timeout
        call_ids, media = options.get("call_ids"), options.get("media")
        self.call_ids: set[str] = call_ids if call_ids is not None else set()
        self.on_settled = options.get("on_settled")
        self.call_log = options.get("call_log")
        self.hooks = hooks
        self.media = media if media is not None else executor.media
        self.permits = asyncio.Semaphore(executor.max_parallel)
        self.tools: Mapping[str, Tool] = executor.tools
        self._reserved = options.get("reserved", ())
        found = options.get("found")
        self._found: dict[str, None] = found if found is not None else {}
        self._search: SearchTools | None = None
        self._not_loaded: list[Tool] = []
        if executor.catalog is not None:
            self.tools = self._searchable(executor.catalog)
        self._results = options.get("results")
        self._reader: ReadResult | None = None
        self._specs: tuple[ToolSpec, ...] | None = None
        self._overridden: tuple[Mapping[str, Tool], Mapping[str, Tool]] | None = None
        self.tools_disabled = False
        """Whether the model may not call tools any more, since it is asked for a final answer."""
        if options.get("offer_reader") and self._results is not None:
            self._ensure_reader(self._results)

    def without_repeated(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Return the calls of external tools that the caller is to run; the others are ``refused``."""
        if self._max_external_repeats is None:
            return calls
        self.repeats.next_reply()
        self.refused |= {call.id: times for call in calls if (times := self.repeats.times(call)) >= self._max_external_repeats}
        return tuple(call for call in calls if call.id not in self.refused)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs of the tools for the model."""
        if self._specs is None:
            self._specs = tuple([tool.spec for tool in self.tools.values() if tool.offered])
        return self._specs

    def set_tools(self, tools: Mapping[str, Tool]) -> None:
        """Replace the tools that the model may call. Ignored after ``disable_tools``."""
        if not self.tools_disabled:
            self.tools = tools
            self._specs = None

    def switch_executor(self, executor: ExecutorSettings) -> None:
        """Use the tools of another executor, but keep those that were added to the run: by hooks, its reader."""
        before = self.executor.tools
        added = {
            name: tool for name, tool in self.tools.items() if before.get(name) is not tool and not isinstance(tool, SearchTools)
        }
        self.executor, self._search = executor, None
        if executor.catalog is None:
            self.set_tools({**executor.tools, **added})
        else:
            self.set_tools({**self._searchable(executor.catalog), **added})

    def _searchable(self, catalog: ToolCatalog) -> Mapping[str, Tool]:
        """Return what is offered of a catalog: the pinned tools, the search, and what was found."""
        search = self._search = SearchTools(catalog, self._offer, self._reserved)
        tools = {**catalog.pinned, search.name: search}
        tools.update((name, catalog.tools[name]) for name in self._found if name in catalog.tools and name not in tools)
        return tools

    def disable_tools(self) -> None:
        """Remove all tools, for good."""
        self._overridden = None
        self.set_tools({})
        self.tools_disabled = True

    def override_tools(self, tools: Mapping[str, Tool]) -> None:
        """Replace the tools for this round."""
        if tools != dict(self.tools):
            self._overridden = self.tools, tools
            self.set_tools(tools)

    def restore_tools(self) -> None:
        """Undo ``override_tools``, but keep tools that the run itself has added since."""
        if self._overridden is not None:
            before, overridden = self._overridden
            self._overridden = None
            self.set_tools({**before, **{name: tool for name, tool in self.tools.items() if name not in overridden}})

    def offer_known(self, messages: Iterable[Message], tool_choice: Any = None) -> None:
        """Offer the tools that were found or called in a conversation, and the one that ``tool_choice`` names."""
        if self._search is not None:
            self._offer(self._search.found_in(messages))
            function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
            chosen = self.executor.tools.get(str(function.get("name"))) if isinstance(function, Mapping) else None
            if chosen is not None:
                self._offer([chosen])

    def find(self, name: str) -> Tool:
        """Return the tool of this name, for hooks. Raises UnknownToolError with the nearest names."""
        return self._not_found_yet(name) or find_tool(self.tools, name)

    def find_called(self, name: str) -> Tool:
        """Return the tool that the model called. Raises UnknownToolError, and ToolNotLoadedError for one not found yet.

        That one is offered after all calls of the reply (``offer_not_loaded``), so that hooks see it before it runs.
        """
        if (tool := self._not_found_yet(name)) is not None:
            self._not_loaded.append(tool)
            raise ToolNotLoadedError(name)
        return find_tool(self.tools, name)

    def offer_not_loaded(self) -> None:
        """Offer the tools that were called before they were found."""
        if self._not_loaded:
            self._offer(self._not_loaded)
            self._not_loaded.clear()

    def _not_found_yet(self, name: str) -> Tool | None:
        if self._search is None or self.tools_disabled or name in self.tools:
            return None
        return self.executor.tools.get(name)

    def _offer(self, tools: Sequence[Tool]) -> None:
        """Append tools that the model may call from the next round on."""
        if new := {tool.name: tool for tool in tools if tool.name not in self.tools}:
            self._found.update(dict.fromkeys(new))
            self.set_tools({**self.tools, **new})

    def is_short(self, text: str) -> bool:
        """Whether the model gets a tool's text unchanged."""
        limit = self.executor.max_result_chars
        is_whole = text.isascii() and (limit is None or len(text) <= limit)
        return is_whole and (len(text) < MIN_URL or not may_have_base64(text))

    async def render(self, value: Any, tool: str = "") -> tuple[str, tuple[Attachment, ...]]:
        """Return the text and the attachments for the model of a value of the tool of this name."""
        media: tuple[str, ...] = ()
        if type(value) is ToolOutput:
            content, attachments = value.text, value.attachments
            media = () if value.response_handled else value.media
        else:
            attachments = attachments_of(value)  # first, for its error messages
            content = render_result(value)
        if media or may_have_base64(content):
            content, files = await self._attach_files(content, media, tool)
            attachments += files
        limit = self.executor.max_result_chars
        if limit is not None and len(content) > limit:
            content = await self._store_long(content, limit)
        if not attachments:
            return content, ()
        accepted = tuple(each for each in attachments if each.kind in self.attachments)
        return described(content, attachments, accepted), accepted

    def shorten(self, text: str) -> str:
        """Return a text shortened to the limit, without base64."""
        limit = self.executor.max_result_chars
        if may_have_base64(text):
            text = replace_base64(text, omission_note)
        return text if limit is None or len(text) <= limit else excerpt(text, limit)

    async def store_files(self, output: ToolOutput, tool: str) -> ToolOutput:
        """Return an output whose media are stored refs; an error if the user cannot be given what is for the user."""
        from patchbay.media.attachments import store_media  # here: most programs have no files

        store, origin = self._media_store(), self._origin(tool)
        return await run_in_thread(lambda: store_media(store, output, origin))

    async def _attach_files(self, text: str, refs: Sequence[str], tool: str) -> tuple[str, tuple[Attachment, ...]]:
        """Return a result's text without its base64, and as attachments that base64 and the files of its refs."""
        from patchbay.media.attachments import attach_media

        store, origin = self._media_store(), self._origin(tool)
        return await run_in_thread(lambda: attach_media(store, text, refs, self.attachments, origin))

    def _media_store(self) -> MediaStore:
        from patchbay.media import shared_store

        return self.media if self.media is not None else shared_store()

    def _origin(self, tool: str) -> FileOrigin:
        from patchbay.media.attachments import FileOrigin

        session, turn = getattr(self.agent_scope.invocation_context, "session_key", None), self.agent_scope.invocation_id
        session = session if isinstance(session, str) else ""
        if (hooks := self.hooks) is not None:
            session, turn = hooks.scope.session_key or session, hooks.scope.turn_id or turn
        return FileOrigin(tool, session, turn)

    async def _store_long(self, text: str, limit: int) -> str:
        """Store a long result, offer its reader, and return an excerpt."""
        if (results := self._results) is None:
            results = self._results = MemoryResultStore()
        try:
            result_id = await results.keep(text)
        except Exception:
            # The store is the caller's own. The model gets an excerpt anyway.
            _logger.exception("A result of %d characters could not be stored", len(text))
            return excerpt(text, limit)
        return excerpt(text, limit, how_to_read=self._ensure_reader(results).advice(result_id))

    def _ensure_reader(self, results: ResultStore) -> ReadResult:
        reader = self._reader
        if reader is None or self.tools.get(reader.name) is not reader:  # other tools may have been put in place meanwhile
            taken = {*self.executor.tools, *self.tools, *self._reserved}
            reader = ReadResult(results, taken, self.executor.max_result_chars)
            self._reader = reader
            self.set_tools({**self.tools, reader.name: reader})
        return reader


def find_tool(tools: Mapping[str, Tool], name: str) -> Tool:
    """Return the tool of this name. Raises UnknownToolError with the nearest names."""
    tool = tools.get(name)
    if tool is None:
        available = tuple(each.name for each in tools.values() if each.offered)
        # Matching is quadratic in the name, and the name is whatever the model wrote.
        short_name = name[:NAME_SHOWN]
        raise UnknownToolError(short_name, nearest=tuple(difflib.get_close_matches(short_name, available)), available=available)
    return tool
