"""``LlmAgent``: a model with an instruction and tools, checked when they are set; its model and executor are made once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any, Final

from patchbay.agents.agent_run import AgentRun, Instruction
from patchbay.agents.agent_tools import AnswerTool, TransferToAgentTool
from patchbay.agents.base import BaseAgent
from patchbay.agents.callbacks import Callbacks, after_hook, as_callbacks, before_hook, model_links
from patchbay.agents.content import Event
from patchbay.agents.context import GenerateContentConfig, InvocationContext
from patchbay.errors import ConfigurationError
from patchbay.executor import Executor
from patchbay.models.chat_model import ChatModel
from patchbay.models.resolve import HostedModel, resolve_model
from patchbay.tools import Tool, collect_tools
from patchbay.tools.output import checked_kinds

_CONTENTS: Final = ("default", "current_turn", "none")


class LlmAgent(BaseAgent):
    """An agent that asks a model, and carries out the tools that it calls, until it answers.

    ``model`` is a name ("gpt-4o-mini", "qwen/qwen-plus"), the URL of any OpenAI-compatible server ("http://host/v1#name"), an
    openai client or a ChatModel; without one it is the parent's. ``tool_mode`` says how the model gets the tools: "auto",
    "native" or "text". ``instruction`` is text, or a function of the context (sync or async); ``{key}`` in it becomes the value
    in the session's state. ``tools`` are functions and tools, mixed; an agent with ``sub_agents`` gets ``transfer_to_agent`` by
    itself.

    ``include_contents`` says what the model is shown of the session: "default" all of it (as far as
    ``RunConfig.max_history_events``), "current_turn" from the user's last message on, "none" nothing but the instruction. The
    text of the answer is put under ``output_key`` into the state, by the event that brings it. With ``output_schema`` (any type
    that pydantic knows) the answer is JSON of that type, and the value of ``output_key`` too. ``attachments`` are the kinds
    ("image", "audio", "file") that the model can be shown of what tools return. ``heartbeat`` is the caller's own; nothing here
    reads it.

    Callbacks are functions or lists of them, sync or async: ``before_model_callback(ctx, request)`` may change the request, or
    return the answer (an LlmResponse, a Content, text), calls of which are carried out; ``after_model_callback(ctx, response)``
    may return another answer; ``before_tool_callback(ctx, name, args)`` may return the result, so that the tool is not run;
    ``after_tool_callback(ctx, name, result)`` may return another result.

    Raises ConfigurationError, or TypeError for what is no tool, for what cannot work. A model's key is looked for when it is
    first asked.
    """

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
        self.tools: list[Any] = list(collect_tools(tools).values())
        self.generate_content_config = _checked_config(generate_content_config)
        self.include_contents = include_contents
        self.output_key = _checked_key(output_key)
        self.output_schema = output_schema
        self.tool_mode = tool_mode
        self.attachments = checked_kinds(attachments)
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
                each.parent_agent = None  # those of an agent that was refused are free for another one
            raise

    @property
    def canonical_model(self) -> Any:
        """The agent's model as it was given, or the nearest ancestor's. Raises ConfigurationError where there is none."""
        agent: BaseAgent | None = self
        while agent is not None:
            if isinstance(agent, LlmAgent) and agent.model not in ("", None):
                return agent.model
            agent = agent.parent_agent
        raise ConfigurationError(f"The agent {self.name!r} has no model, and nor has any above it.")

    @property
    def model_name(self) -> str:
        """The model's name, "" where it has none, and where there is no model."""
        try:
            model = self.canonical_model
        except ConfigurationError:
            return ""
        return model if isinstance(model, str) else str(getattr(model, "name", None) or "")

    def chat_model(self) -> ChatModel:
        """Return the model to ask. Raises ConfigurationError for a name that cannot be read, or a key that is missing."""
        given = self.canonical_model
        if self._resolved is None or self._resolved[0] is not given:
            self._resolved = given, resolve_model(given, tool_mode=self.tool_mode)
        return self._resolved[1]

    @property
    def executor(self) -> Executor:
        """What carries out this agent's calls; made anew where ``tools``, ``sub_agents`` or the callbacks have changed."""
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
        )
        if self._made is None or self._made[0] != made_of:
            self._made = made_of, self._make_executor()
        return self._made[1]

    @property
    def answer_tool(self) -> AnswerTool | None:
        """The tool that the model gives its answer by, where that has a type."""
        tool = self.executor.tools.get("give_answer")
        return tool if isinstance(tool, AnswerTool) else None

    async def aclose(self) -> None:
        """Close the connections of a model that was given by its name."""
        if self._resolved is not None and isinstance(model := self._resolved[1], HostedModel) and model is not self._resolved[0]:
            await model.aclose()

    def _make_executor(self) -> Executor:
        added: list[Tool] = [TransferToAgentTool(self.sub_agents)] if self.sub_agents else []
        if self.output_schema is not None:
            added.append(AnswerTool(self.output_schema))
        return Executor(
            [*self.tools, *added],
            before=[before_hook(callback) for callback in as_callbacks(self.before_tool_callback, "before_tool_callback")],
            after=[after_hook(callback) for callback in as_callbacks(self.after_tool_callback, "after_tool_callback")],
            links=model_links(self),
        )

    def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        return AgentRun(self, ctx).events()


def _checked_model(model: Any, tool_mode: str | None) -> Any:
    if not (model is None or isinstance(model, str | ChatModel) or hasattr(model, "chat")):
        raise TypeError(f"A model is a name, a URL, an openai client or a ChatModel, not {type(model).__name__}.")
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
