"""The options that the proxy, the wrapped client and the runner share, validated when they are set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from operator import not_
from typing import TYPE_CHECKING, Any, Literal

from patchbay._flags import flag
from patchbay.errors import ConfigurationError
from patchbay.types import DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG

if TYPE_CHECKING:  # (the command line reads flags without loading formats)
    from patchbay.formats.contract import Template
    from patchbay.formats.spec import Format
    from patchbay.formats.values.tool_names import UnknownTools

ToolMode = Literal["auto", "text", "native"]
SystemInjection = Literal["merge", "prepend"]
ConstrainMode = Literal["auto", "off", "force"]


def parse_xml_tools(pairs: Iterable[str]) -> dict[str, str] | None:
    """Parse ``TAG=TOOL`` pairs. Raises ConfigurationError."""
    pairs = list(pairs)
    for pair in pairs:
        if "=" not in pair:
            raise ConfigurationError(f"Invalid --xml-tool {pair!r}: use TAG=TOOL, such as bash=run_shell.")
    return dict(pair.partition("=")[::2] for pair in pairs) or None


def make_options(where: str, options: Mapping[str, Any]) -> TextOptions:
    """Make TextOptions from keywords; raises ConfigurationError that names ``where`` for an unknown one."""
    known = [option.name for option in fields(TextOptions)]
    for name in options:
        if name not in known:
            raise ConfigurationError(f"{where}: there is no option {name!r}. The options are {', '.join(known)}.")
    return TextOptions(**options)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """How tools are sent to a model. Raises ConfigurationError for invalid values.

    ``tools``: "text" always uses the contract, "native" passes tools on (calls leaked into the content are still found), "auto"
    is native until a model is found to refuse or drop them.
    ``format``: how tools and history are written for the model, and how its text is parsed. "auto" parses all formats, and writes
    in the format of the model's family if its name tells it (``prompt_format``), else by the fenced contract; so does a Format of
    the caller's own. ``tool_call_tag`` and ``tool_result_tag`` are the contract's labels; ``template`` replaces its instructions.
    ``xml_tools``: tags that are read as calls, each with the name of its tool.
    ``system_injection``: "merge" adds the contract to the first system message, "prepend" gives it a message of its own.
    ``repair_rounds``: maximum of retries for calls whose arguments do not fit their schema.
    ``choice_rounds``: maximum of retries for an answer that breaks ``tool_choice`` or ``response_format``, or has a call whose
    arguments are no JSON object.
    ``constrain``: for tools in the prompt, the server is sent a grammar of the valid calls: "auto" where it takes one, "force"
    always (tools are in the prompt then, and a request fails if its server takes no grammar), "off" never.
    ``copy_arguments``: for models of less than a billion parameters: brief instructions with an example of each tool, one call in
    an answer, and, with a grammar, arguments that are copied from the conversation. A request's own ``patchbay`` field may set
    ``tools`` and these two.
    """

    tools: ToolMode = field(
        default="auto",
        metadata=flag(
            "auto: native tools first, the text contract if the model fails; text: always the contract; native: always native.",
            type=ToolMode,
        ),
    )
    format: str | Format = field(
        default="auto",
        metadata=flag(
            "How tools are described to the model and its calls are read: a format, a format file (.toml), or a checkpoint's "
            "files. auto: by the model's name, reading all formats.",
            metavar="NAME|PATH",
        ),
    )
    tool_call_tag: str = field(
        default=DEFAULT_CALL_TAG, metadata=flag("Label of the fenced blocks with calls.", name="tag", metavar="TAG")
    )
    tool_result_tag: str = DEFAULT_RESULT_TAG
    include_examples: bool = field(
        default=True, metadata=flag("Leave the example out of the instructions.", name="no-examples", default=False, parse=not_)
    )
    template: Template | None = None
    system_injection: SystemInjection = field(
        default="merge",
        metadata=flag("Merge the instructions into the client's system message, or prepend a new one.", type=SystemInjection),
    )
    lenient_fences: bool = True
    generate_id: Callable[[int], str] | None = None
    reasoning: bool = field(
        default=True, metadata=flag("Leave reasoning in the text.", name="no-reasoning", default=False, parse=not_)
    )
    reasoning_tag: str = field(
        default="think", metadata=flag("Tag around the model's reasoning, which is split from the text.", metavar="TAG")
    )
    unknown_tools: UnknownTools = "text"
    xml_tools: Mapping[str, str] | None = field(
        default=None,
        hash=False,
        metadata=flag(
            "Read <TAG>…</TAG> as a call of TOOL; repeatable.",
            name="xml-tool",
            env=("PATCHBAY_XML_TOOLS",),
            metavar="TAG=TOOL",
            type=list[str],
            parse=parse_xml_tools,
        ),
    )
    repair_rounds: int = field(
        default=0, metadata=flag("Retries for calls whose arguments do not match their schema.", metavar="N", min=0)
    )
    choice_rounds: int = 2
    constrain: ConstrainMode = field(
        default="auto",
        metadata=flag(
            "Whether the model's server allows valid calls only, for tools in the prompt: auto: where it can; off: never; force: "
            "always, and a request fails where it cannot.",
            type=ConstrainMode,
        ),
    )
    copy_arguments: bool = field(
        default=False,
        metadata=flag(
            "For models of less than a billion parameters: brief instructions, one call at a time and, with a grammar, arguments "
            "copied from the conversation where their schema leaves them free."
        ),
    )

    def __post_init__(self) -> None:
        from patchbay.formats.catalog import choose
        from patchbay.formats.codecs.xml_tools import check_xml_tools
        from patchbay.formats.parser import check_tag

        choose(self.format)
        hashed = tuple(getattr(self, option.name) for option in fields(self) if option.hash is not False)
        object.__setattr__(self, "_hash", hash(hashed))  # (a cache key of every request)
        for option in ("tool_call_tag", "tool_result_tag", "reasoning_tag"):
            check_tag(getattr(self, option), option)
        if self.tool_call_tag.lower() == self.tool_result_tag.lower():
            raise ConfigurationError("tool_call_tag and tool_result_tag must differ.")
        if self.constrain == "force" and self.tools == "native":
            raise ConfigurationError("constrain='force' needs the tools in the prompt: use tools='auto' or 'text'.")
        for option in ("include_examples", "lenient_fences", "reasoning", "copy_arguments"):
            _one_of(option, getattr(self, option), (True, False))
        for option in ("template", "generate_id"):
            value = getattr(self, option)
            if value is not None and not callable(value):
                raise ConfigurationError(f"{option} is {value!r}: use a function, or None.")
        check_xml_tools(self.xml_tools)
        _one_of("tools", self.tools, ("auto", "text", "native"))
        _one_of("system_injection", self.system_injection, ("merge", "prepend"))
        _one_of("constrain", self.constrain, ("auto", "off", "force"))
        _one_of("unknown_tools", self.unknown_tools, ("text", "keep", "drop"))
        for option in ("repair_rounds", "choice_rounds"):
            value = getattr(self, option)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10:
                raise ConfigurationError(f"{option} is {value!r}: use a whole number from 0 to 10.")

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def prompt_format(self, model: str) -> str | Format:
        """Return the format in which tools and history are written for the model of this name.

        The caller's own labels or template belong to the contract, so with them the name is ignored.
        """
        labels = self.tool_call_tag, self.tool_result_tag
        if self.format != "auto" or self.template is not None or labels != (DEFAULT_CALL_TAG, DEFAULT_RESULT_TAG):
            return self.format
        from patchbay.formats.render import format_for

        return format_for(model)


def _one_of(option: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{option} is {value!r}: use one of {', '.join(map(repr, allowed))}.")
