"""Hand-written texts of formats whose replies are sequences of messages, with the expected reading of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def tool(name: str, /, **types: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in types.items()}
    schema = {"type": "object", "properties": properties, "required": list(types)[:1]}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    tool("find_ship", name="string", year="integer"),
    tool("list_ports"),
    tool("python", code="string"),
    tool("wire.send", to="array"),
]
SHIP = '{"name": "Vasa"}'
START = "<|start|>assistant"


@dataclass(frozen=True)
class Case:
    id: str
    format: str
    text: str
    content: str | None = None
    reasoning: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    cut: tuple[str, ...] = ()
    auto: bool = True
    options: dict[str, Any] = field(default_factory=dict, compare=False)


def harmony(id: str, text: str, **expected: Any) -> Case:  # noqa: A002
    return Case(f"harmony: {id}", "harmony", text, **expected)


ONE = (("find_ship", SHIP),)
HARMONY = [
    harmony(
        "words where arguments should be",
        f"{START}<|channel|>commentary to=functions.find_ship <|constrain|>json<|message|>hello world<|call|>",
        content=f"{START}<|channel|>commentary to=functions.find_ship <|constrain|>json<|message|>hello world<|call|>",
    ),
    harmony(
        "recipient at the start of the text",
        f" to=functions.find_ship<|channel|>analysis <|constrain|>json<|message|>{SHIP}",
        calls=ONE,
    ),
    harmony("channel at the start of the text", f"commentary to=functions.find_ship json<|message|>{SHIP}<|call|>", calls=ONE),
    harmony("no arguments", "<|channel|>commentary to=functions.list_ports<|message|><|call|>", calls=(("list_ports", "{}"),)),
    harmony(
        "preamble, two calls, answer",
        f"<|channel|>commentary<|message|>I will look twice.<|end|>{START} to=functions.find_ship<|channel|>commentary<|message|>{SHIP}"
        f"<|call|>{START} to=functions.list_ports<|channel|>commentary<|message|>{{}}<|call|>{START}<|channel|>final<|message|>Done.<|return|>",
        content="I will look twice.\nDone.",
        calls=(*ONE, ("list_ports", "{}")),
    ),
    harmony(
        "code as it stands",
        "<|channel|>commentary to=python <|constrain|>code<|message|>print('a')\nb<|call|>",
        calls=(("python", '{"code": "print(\'a\')\\nb"}'),),
    ),
    harmony(
        "recipient assistant",
        f"<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|>{START}<|channel|>final<|message|>Yes.",
        content="Yes.",
        reasoning="Hm.",
    ),
    harmony(
        "question marks instead of a channel", f"<|channel|>??<|end|>{START}<|channel|>final<|message|>Yes.", content="??\nYes."
    ),
    harmony("channel with a question mark", "<|channel|>commentary?<|message|>Yes.<|return|>", content="Yes."),
    harmony(
        "text instead of a header",
        f"<|channel|>Let me see.<|end|>{START}<|channel|>analysis<|message|>Hm.<|end|>{START}<|channel|>final<|message|>Yes.",
        content="Let me see.\nYes.",
        reasoning="Hm.",
    ),
    harmony(
        "doubled role",
        f"<|channel|>analysis<|message|>Hm.<|end|>{START}assistant<|channel|>final<|message|>Yes.",
        content="Yes.",
        reasoning="Hm.",
    ),
    harmony(
        "start left out",
        "<|channel|>analysis<|message|>Hm.<|end|>assistant<|channel|>final<|message|>Yes.",
        content="Yes.",
        reasoning="Hm.",
    ),
    harmony("empty channel", "<|channel|><|message|>Yes.<|return|>", content="Yes."),
    harmony(
        "stray token behind an end",
        f"<|channel|>analysis<|message|>Hm.<|end|> 71 {START}<|channel|>final<|message|>Yes.",
        content="71 \nYes.",
        reasoning="Hm.",
    ),
    harmony(
        "analysis without an end",
        f"<|channel|>analysis<|message|>Hm. {START}<|channel|>final<|message|>Yes.",
        content="Yes.",
        reasoning="Hm.",
    ),
    harmony("message marker left out", "<|channel|>final Yes, and more.<|return|>", content="Yes, and more."),
    harmony("no header at all", f"I must not.<|end|>{START}<|channel|>final<|message|>No.<|return|>", content="I must not.\nNo."),
    harmony("cut before the arguments", "<|channel|>commentary to=functions.find_ship<|message|>", cut=("find_ship",)),
    harmony(
        "cut in the header", f"<|channel|>final<|message|>Yes.<|end|>{START} to=functions.find_sh", content="Yes.", cut=("",)
    ),
    harmony("cut in a header that says nothing yet", f"<|channel|>final<|message|>Yes.<|end|>{START}<|chan", content="Yes."),
    harmony(
        "invented question",
        f"<|channel|>final<|message|>Yes.<|end|><|start|>user<|message|>And?<|end|>{START} to=functions.list_ports<|channel|>commentary<|message|>{{}}<|call|>",
        content=f"Yes.\nAnd?{START} to=functions.list_ports<|channel|>commentary<|message|>{{}}<|call|>",
    ),
    harmony(
        "stripped of its tokens",
        f"analysisI look.assistantcommentary to=functions.find_ship json{SHIP}",
        reasoning="I look.",
        calls=ONE,
    ),
    harmony(
        "stripped, recipient behind the role",
        f"analysisI look.assistant to=functions.find_shipcommentary json{SHIP}assistantfinalDone.",
        content="Done.",
        reasoning="I look.",
        calls=ONE,
    ),
    harmony("stripped, a call alone", f"commentary to=functions.find_ship{SHIP}", calls=ONE),
    harmony(
        "stripped, cut",
        'analysisI look.assistantcommentary to=functions.find_ship json{"name": "V',
        reasoning="I look.",
        cut=("find_ship",),
    ),
    harmony("stripped, nothing follows", "analysisI look and look", reasoning="I look and look", auto=False),
    harmony(
        "the prompt opened the analysis",
        f"Hm.<|end|>{START}<|channel|>final<|message|>Yes.",
        content="Yes.",
        reasoning="Hm.",
        options={"reasoning_prefilled": True},
    ),
    harmony(
        "the prompt opened it, no end",
        f"Hm.{START}<|channel|>final<|message|>Yes.<|return|>",
        content="Yes.",
        reasoning="Hm.",
        options={"reasoning_prefilled": True},
    ),
]
ATEM = '<atem:function_calls>\n<atem:invoke name="{}">\n<atem:parameter name="name">Vasa</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
MUSE = [
    Case(
        "muse: markup in a thought",
        "muse",
        f" to=self<|message|>Not {ATEM.format('find_ship')}.<|eom|>{START} to=user<|message|>No.",
        content="No.",
        reasoning=f"Not {ATEM.format('find_ship')}.",
    ),
    Case("muse: no channel around it", "muse", ATEM.format("find_ship"), content=ATEM.format("find_ship"), auto=False),
    Case(
        "muse: text for the developer",
        "muse",
        f" to=developer<|message|>Note.<|eom|>{START} to=user<|message|>Hi.",
        content="Hi.",
    ),
    Case(
        "muse: no recipient is a thought",
        "muse",
        f" to=self<|message|>A.<|eom|>{START}<|message|>B.<|eom|>{START} to=user<|message|>Hi.",
        content="Hi.",
        reasoning="A.\n\nB.",
    ),
    Case(
        "muse: answer without a header",
        "muse",
        f"{START} to=find_ship<|message|>{ATEM.format('find_ship')}<|eom|>Found.",
        content="Found.",
        calls=ONE,
    ),
    Case("muse: arguments as JSON", "muse", f" to=find_ship<|message|>{SHIP}<|eom|>", calls=ONE),
    Case(
        "muse: cut",
        "muse",
        ' to=find_ship<|message|><atem:function_calls>\n<atem:invoke name="find_ship">\n<atem:parameter name="name">Va',
        cut=("find_ship",),
    ),
    Case(
        "muse: no such tool",
        "muse",
        f" to=sink<|message|>{ATEM.format('sink')}<|eot|>",
        content=f" to=sink<|message|>{ATEM.format('sink')}<|eot|>",
    ),
]
INVOKE = '<|content_invoke_tool_json|>{"name": "find_ship", "args": {"name": "Vasa"}}<|end_message|>'
INKLING = [
    Case("inkling: name at the start", "inkling", f"find_ship{INVOKE}", calls=ONE),
    Case("inkling: text without a block", "inkling", "Hello.<|end_message|>", content="Hello."),
    Case("inkling: prose before a call", "inkling", f"I look.<|message_model|>find_ship{INVOKE}", content="I look.", calls=ONE),
    Case(
        "inkling: a block that is no call",
        "inkling",
        f"<|message_model|>find_ship<|content_invoke_tool_json|>oops{INVOKE}",
        content="oops",
        calls=ONE,
    ),
    Case(
        "inkling: thought without an end",
        "inkling",
        "<|content_thinking|>Hm.<|message_model|><|content_text|>Yes.<|end_message|>",
        content="Yes.",
        reasoning="Hm.",
    ),
    Case("inkling: kind of block left out", "inkling", "<|message_model|>Hello you.<|end_message|>", content="Hello you."),
    Case("inkling: cut", "inkling", '<|content_invoke_tool_json|>{"name": "find_ship", "args": {"name": "V', cut=("find_ship",)),
    Case(
        "inkling: no such tool",
        "inkling",
        '<|content_invoke_tool_json|>{"name": "sink", "args": {}}<|end_message|>',
        content='<|content_invoke_tool_json|>{"name": "sink", "args": {}}<|end_message|>',
    ),
    Case(
        "inkling: the prompt opened the thought",
        "inkling",
        "Hm.<|end_message|><|message_model|><|content_text|>Yes.",
        content="Yes.",
        reasoning="Hm.",
        options={"reasoning_prefilled": True},
    ),
]


def element(tag: str, inside: str, attributes: str = "") -> str:
    return f"<|open|>{tag}{attributes}<|sep|>{inside}<|close|>{tag}<|sep|>"


def argument(key: str, kind: str, value: str) -> str:
    return element("argument", value, f' key="{key}" type="{kind}"')


def k3_call(name: str, *arguments: str) -> str:
    return element("call", "".join(arguments), f' tool="{name}" index="1"')


KIMI = [
    Case(
        "kimi_k3: thought without an end",
        "kimi_k3",
        "<|open|>think<|sep|>Hm." + element("response", "Yes."),
        content="Yes.",
        reasoning="Hm.",
    ),
    Case(
        "kimi_k3: answer and call without their ends",
        "kimi_k3",
        "<|open|>response<|sep|>Yes.<|open|>tools<|sep|>" + k3_call("find_ship", argument("name", "string", "Vasa")),
        content="Yes.",
        calls=ONE,
    ),
    Case(
        "kimi_k3: argument without an end",
        "kimi_k3",
        '<|open|>call tool="find_ship"<|sep|><|open|>argument key="name" type="string"<|sep|>Vasa<|close|>call<|sep|>',
        calls=ONE,
    ),
    Case(
        "kimi_k3: value as Python writes it",
        "kimi_k3",
        k3_call("wire.send", argument("to", "array", "['a', True]")),
        calls=(("wire.send", '{"to": ["a", true]}'),),
    ),
    Case(
        "kimi_k3: cut in a value",
        "kimi_k3",
        '<|open|>call tool="find_ship"<|sep|><|open|>argument key="name" type="string"<|sep|>Va',
        cut=("find_ship",),
    ),
    Case(
        "kimi_k3: cut before what is required",
        "kimi_k3",
        '<|open|>call tool="find_ship"<|sep|>' + argument("year", "number", "1628"),
        cut=("find_ship",),
    ),
    Case(
        "kimi_k3: only outer ends are missing",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="find_ship"<|sep|>' + argument("name", "string", "Vasa") + "<|close|>call<|sep|>",
        calls=ONE,
    ),
    Case(
        "kimi_k3: cut behind an argument",
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="find_ship"<|sep|>' + argument("name", "string", "Vasa"),
        cut=("find_ship",),
    ),
    Case(
        "kimi_k3: cut in the tag",
        "kimi_k3",
        element("response", "Yes.") + '<|open|>tools<|sep|><|open|>call tool="find_ship"',
        content="Yes.",
        cut=("find_ship",),
    ),
    Case(
        "kimi_k3: no such tool",
        "kimi_k3",
        k3_call("sink", argument("a", "string", "b")),
        content=k3_call("sink", argument("a", "string", "b")),
    ),
    Case("kimi_k3: a mark quoted", "kimi_k3", element("response", 'Say "<|close|>" now.'), content='Say "<|close|>" now.'),
]
OTHERS = [
    Case(
        "functionary_v32: an answer behind a call",
        "functionary_v32",
        f">>>find_ship\n{SHIP}>>>all\nFound.",
        content="Found.",
        calls=ONE,
    ),
    Case(
        "functionary_v32: code",
        "functionary_v32",
        "python\nprint(1)\n>>> x\n",
        calls=(("python", '{"code": "print(1)\\n>>> x\\n"}'),),
    ),
    Case("functionary_v32: cut", "functionary_v32", '>>>find_ship\n{"name": "V', cut=("find_ship",)),
    Case(
        "functionary_v32: no call behind a name",
        "functionary_v32",
        "find_ship\nfinds ships.\n>>>find_ship\nfinds ships.",
        content="find_ship\nfinds ships.\n>>>find_ship\nfinds ships.",
    ),
    Case("functionary_v2: answer", "functionary_v2", "all\n<|content|>Hello.<|stop|>", content="Hello."),
    Case(
        "cohere_command: thought and actions",
        "cohere_command",
        '<|START_THINKING|>See <co>this</co: 0:[1]>.<|END_THINKING|><|START_ACTION|>[\n  {"tool_call_id": "0", "tool_name": "find_ship", "parameters": {"name": "Vasa"}}\n]<|END_ACTION|>',
        reasoning="See this.",
        calls=ONE,
    ),
    Case(
        "cohere_command: thought without an end",
        "cohere_command",
        '<|START_THINKING|>Hm.<|START_ACTION|>[{"tool_name": "find_ship", "parameters": {"name": "Vasa"}}]<|END_ACTION|>',
        reasoning="Hm.",
        calls=ONE,
    ),
    Case(
        "cohere_command: the prompt opened the thought",
        "cohere_command",
        "Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>",
        content="Yes.",
        reasoning="Hm.",
    ),
    Case(
        "cohere_command: citations",
        "cohere_command",
        "<|START_RESPONSE|>The <co>Vasa</co: 0:[1,2],1:[3]> and <co: 1>more</co: 1>.<|END_RESPONSE|>",
        content="The Vasa and more.",
    ),
]
CASES = [*HARMONY, *MUSE, *INKLING, *KIMI, *OTHERS]
