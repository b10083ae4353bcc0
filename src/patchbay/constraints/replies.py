"""Grammars of whole replies: calls, text, reasoning and answers in a given form, as the policy of a request allows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patchbay.constraints.calls import MAX_CALLS, CallWriter, OfferedTool
from patchbay.constraints.forms import Form
from patchbay.constraints.gbnf import Grammar, NoGrammarError, alternatives, literal, sequence
from patchbay.constraints.spans import Spans
from patchbay.constraints.values import JSON, ValueWriter
from patchbay.formats.render import Writer
from patchbay.formats.render.fenced import FencedWriter

_THOUGHTS = ("<think>\n", "\n</think>\n\n")


@dataclass(frozen=True)
class ReplyRules:
    """What a reply may be.

    ``needed``: it is at least one call, else calls or text. ``most``: the greatest number of calls, 0 for text alone.
    ``answer``: an answer without calls has this form, as JSON. ``reasoning``: the model may reason first, between its family's
    tags. ``opened``: its prompt has opened the reasoning.
    """

    needed: bool = False
    most: int = MAX_CALLS
    answer: Form | None = None
    reasoning: bool = False
    opened: bool = False


def reply_grammar(writer: Writer, tools: Sequence[OfferedTool], rules: ReplyRules, spans: Spans | None = None) -> str:
    """Return the grammar, in GBNF, of a reply in a writer's format. Raises NoGrammarError."""
    grammar = Grammar()
    calls = CallWriter(grammar, writer, spans).calls(tools, rules.most) if rules.most else ""
    if rules.needed:
        reply = calls
    elif rules.answer is not None:
        answer = ValueWriter(grammar, JSON).value(rules.answer)
        reply = alternatives([grammar.rule("calls", calls), answer]) if calls else answer
    else:
        text = grammar.without("prose", _openings(writer))
        before = sequence(text, literal("\n")) if isinstance(writer, FencedWriter) else text
        reply = text
        if calls:
            calls = grammar.rule("calls", calls)
            reply = alternatives([text, calls, sequence(before, calls)])
    return grammar.text(sequence(_thoughts(grammar, writer, rules), reply))


def _thoughts(grammar: Grammar, writer: Writer, rules: ReplyRules) -> str:
    """Return the expression of reasoning before the reply, "" for none."""
    if not (rules.reasoning or rules.opened):
        return ""
    tags = _THOUGHTS if isinstance(writer, FencedWriter) else writer.layout.reasoning
    if tags is None or not tags[1].strip():
        return ""
    begin, end = tags[0].strip(), tags[1].strip()
    if begin.isidentifier() or begin[:1] == "/":  # a word, which its line ends
        begin = tags[0]
    markers = [] if isinstance(writer, FencedWriter) else [marker for marker in writer.markers if marker[0] == end[0]]
    if rules.opened:  # the reader takes either for the end
        markers.append("</think>")
    thoughts = sequence(grammar.without("thought", [end, *markers]), literal(end), '"\\n"{0,2}')
    if rules.opened:
        return thoughts
    return grammar.optional(sequence(literal(begin), thoughts)) if begin else ""


def _openings(writer: Writer) -> list[str]:
    """Return the markers that begin calls, and that text beside them must not contain. Raises NoGrammarError."""
    if isinstance(writer, FencedWriter):
        return [f"`{writer.call_tag}", f"~{writer.call_tag}"]
    opening = (writer.block[0] + writer.call).lstrip()
    if opening.startswith("```"):
        return [f"`{opening.lstrip('`').split()[0]}"]
    found = [marker for marker in writer.markers if opening.startswith(marker)]
    if not found or writer.layout.prose[0] or writer.layout.answer[0]:
        raise NoGrammarError(f"in the format {writer.format}, nothing tells a text from a call")
    return found
