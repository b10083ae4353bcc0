"""``LlmAgent``: a model with an instruction and tools; its model and executor are made once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from patchbay.agents.agent_run import AgentRun, Instruction
from patchbay.agents.agent_tools import AnswerTool, TransferToAgentTool
from patchbay.agents.base import BaseAgent, InvocationContext
from patchbay.agents.callbacks import model_hooks, tool_hook
from patchbay.agents.content import Event
from patchbay.agents.run_config import GenerateContentConfig
from patchbay.errors import ConfigurationError
from patchbay.executor import Executor
from patchbay.executor.callbacks import Callbacks, as_callbacks
from patchbay.models.chat_model import ChatModel
from patchbay.models.resolve import HostedModel, resolve_model
from patchbay.tools import Tool, ToolSearch
from patchbay.tools.function import collect_with_toolsets
from patchbay.tools.output import checked_kinds

_CONTENTS: Final = ("default", "current_turn", "none")


class LlmAgent(BaseAgent):
    """An agent that asks a model, and runs the tools that it calls, until it answers; its options are its attributes.

    Callbacks are functions or lists of them, sync or async. Raises ConfigurationError for invalid options, TypeError for an
    invalid tool. A model's API key is read at the first request.
    """

    model: Any
    """A name ("gpt-4o-mini", "qwen/qwen-plus"), the URL of any OpenAI-compatible server ("http://host/v1#name"), an openai client
    or a ChatModel; by default the parent's."""
    instruction: Instruction
    """Text, or a function of the context; ``{key}`` becomes the value in the session's state."""
    tools: list[Any]
    """Functions, tools and Toolsets, mixed; an agent with ``sub_agents`` also gets ``transfer_to_agent``."""
    generate_content_config: GenerateContentConfig | None
    """The parameters of requests; None for the server's own."""
    include_contents: str
    """The part of the session that the model gets: "default" all of it (up to ``RunConfig.max_history_events``), "current_turn"
    from the user's last message on, "none" only the instruction."""
    output_key: str | None
    """The key of the state that the event of the answer sets to its text, or to the value of ``output_schema``."""
    output_schema: Any
    """The type of the answer, which then is JSON: any type that pydantic supports."""
    tool_mode: str | None
    """How the model gets the tools: "auto", "native" or "text"."""
    attachments: frozenset[str]
    """The kinds of files of results that the model accepts: "image", "audio", "file"."""
    tool_search: ToolSearch | None
    """With more than 40 tools the model is offered a search in their place; None: always all of them."""
    heartbeat: Any
    """The caller's own."""
    before_model_callback: Callbacks
    """``(ctx, request)``: may change the request, or return the answer (an LlmResponse, a Content, text), whose calls are run."""
    after_model_callback: Callbacks
    """``(ctx, response)``: may return another answer."""
    before_tool_callback: Callbacks
    """``(ctx, name, args)``: may return the result, so that the tool does not run."""
    after_tool_callback: Callbacks
    """``(ctx, name, result)``: may return another result."""

    keeps_time = True

    def __init__(
        self,
        *,
        name: str,
        model: Any = "",
        instruction: Instruction = "",
        description: str = "",
        tools: Sequence[Any] = (),
        sub_agents: Sequence[BaseAgent] = (),
        generate_content_config: GenerateContentConfig | None = None,
        include_contents: str = "default",
        output_key: str | None = None,
        output_schema: Any = None,
        tool_mode: str | None = None,
        attachments: Collection[str] = (),
        tool_search: ToolSearch | None = ToolSearch(),  # noqa: B008  (frozen)
        heartbeat: Any = None,
        before_agent_callback: Callbacks = None,
        after_agent_callback: Callbacks = None,
        before_model_callback: Callbacks = None,
        after_model_callback: Callbacks = None,
        before_tool_callback: Callbacks = None,
        after_tool_callback: Callbacks = None,
        **fields: Any,
    ) -> None:
        if not isinstance(instruction, str) and not callable(instruction):
            raise ConfigurationError(f"instruction must be text or a function, not {type(instruction).__name__}.")
        if include_contents not in _CONTENTS:
            raise ConfigurationError(f"include_contents is {include_contents!r}: use {', '.join(map(repr, _CONTENTS))}.")
        if tool_mode not in (None, "auto", "native", "text"):
            raise ConfigurationError(f"tool_mode is {tool_mode!r}: use 'auto', 'native' or 'text'.")
        self.model = _checked_model(model, tool_mode)
        self.instruction = instruction
        collected, toolsets = collect_with_toolsets(tools)
        self.tools = [*collected.values(), *toolsets]
        self.generate_content_config = _checked_config(generate_content_config)
        self.include_contents = include_contents
        self.output_key = _checked_key(output_key)
        self.output_schema = output_schema
        self.tool_mode = tool_mode
        self.attachments = checked_kinds(attachments)
        self.tool_search = tool_search
        self.heartbeat = heartbeat
        self.before_model_callback = as_callbacks(before_model_callback, "before_model_callback")
        self.after_model_callback = as_callbacks(after_model_callback, "after_model_callback")
        self.before_tool_callback = as_callbacks(before_tool_callback, "before_tool_callback")
        self.after_tool_callback = as_callbacks(after_tool_callback, "after_tool_callback")
        self._resolved: tuple[Any, ChatModel] | None = None
        self._made: tuple[Any, Executor] | None = None
        super().__init__(
            name=name,
            description=description,
            sub_agents=sub_agents,
            before_agent_callback=before_agent_callback,
            after_agent_callback=after_agent_callback,
            **fields,
        )
        try:
            for tool in self.executor.tools.values():
                tool.check()
        except BaseException:
            for each in self.sub_agents:
                each.parent_agent = None  # so that they can be used for another agent
            raise

    @property
    def canonical_model(self) -> Any:
        """The agent's ``model``, or the nearest ancestor's. Raises ConfigurationError if there is none."""
        agent: BaseAgent | None = self
        while agent is not None:
            if isinstance(agent, LlmAgent) and agent.model not in ("", None):
                return agent.model
            agent = agent.parent_agent
        raise ConfigurationError(f"The agent {self.name!r} has no model, and neither has any parent.")

    @property
    def model_name(self) -> str:
        """The model's name, "" if it has none, or there is no model."""
        try:
            model = self.canonical_model
        except ConfigurationError:
            return ""
        return model if isinstance(model, str) else str(getattr(model, "name", None) or "")

    def chat_model(self) -> ChatModel:
        """Return the agent's model. Raises ConfigurationError for an invalid name, or a missing key."""
        given = self.canonical_model
        if self._resolved is None or self._resolved[0] is not given:
            self._resolved = given, resolve_model(given, tool_mode=self.tool_mode)
        return self._resolved[1]

    @property
    def executor(self) -> Executor:
        """The agent's executor, recreated when ``tools``, ``sub_agents`` or the callbacks have changed."""
        made_of = (
            *self.tools,
            None,
            *self.sub_agents,
            None,
            self.before_tool_callback,
            self.after_tool_callback,
            self.before_model_callback,
            self.after_model_callback,
            self.output_schema,
            self.tool_search,
        )
        if self._made is None or self._made[0] != made_of:
            self._made = made_of, self._make_executor()
        return self._made[1]

    @property
    def answer_tool(self) -> AnswerTool | None:
        """The tool of a typed answer."""
        tool = self.executor.tools.get("give_answer")
        return tool if isinstance(tool, AnswerTool) else None

    async def aclose(self) -> None:
        """Close the agent's toolsets, and the connections of a model that was created from its name."""
        for toolset in self.executor.toolsets:
            await toolset.aclose()
        if self._resolved is not None and isinstance(model := self._resolved[1], HostedModel) and model is not self._resolved[0]:
            await model.aclose()

    def _make_executor(self) -> Executor:
        added: list[Tool] = [TransferToAgentTool(self.sub_agents)] if self.sub_agents else []
        if self.output_schema is not None:
            added.append(AnswerTool(self.output_schema))
        search = self.tool_search
        if search is not None and added:
            search = replace(search, pinned=(*search.pinned, *(tool.name for tool in added)))
        return Executor(
            [*self.tools, *added],
            before=[tool_hook(callback) for callback in as_callbacks(self.before_tool_callback, "before_tool_callback")],
            after=[tool_hook(callback) for callback in as_callbacks(self.after_tool_callback, "after_tool_callback")],
            links=model_hooks(self.before_model_callback, self.after_model_callback, self._describe_model),
            search=search,
        )

    def _describe_model(self) -> tuple[str | None, GenerateContentConfig]:
        try:
            name = getattr(self.chat_model(), "name", None)
        except ConfigurationError:  # a callback may answer in its place
            name = self.model_name or None
        return name, self.generate_content_config or GenerateContentConfig()

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        return AgentRun(self, ctx).events()


def _checked_model(model: Any, tool_mode: str | None) -> Any:
    if not (model is None or isinstance(model, str | ChatModel) or hasattr(model, "chat")):
        raise TypeError(f"model must be a name, a URL, an openai client or a ChatModel, not {type(model).__name__}.")
    if tool_mode is not None and isinstance(model, ChatModel):
        raise ConfigurationError(f"tool_mode cannot be applied to {model!r}: a ChatModel has settings of its own.")
    return model


def _checked_config(config: Any) -> GenerateContentConfig | None:
    if config is not None and not isinstance(config, GenerateContentConfig):
        raise ConfigurationError(f"generate_content_config must be a GenerateContentConfig, not {type(config).__name__}.")
    return config


def _checked_key(key: Any) -> str | None:
    if key is not None and (not isinstance(key, str) or not key):
        raise ConfigurationError(f"output_key must be a key of the state, not {key!r}.")
    return key


Agent = LlmAgent
"""The short name."""
