"""Probes that measure a server: its context, its cache and its speed; then the command line for it, and whether that works."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any, Final

from patchbay._text import plural
from patchbay.constraints.backends import Backend
from patchbay.doctor.abilities import NATIVE, QUESTION, TOOL
from patchbay.doctor.findings import Result
from patchbay.doctor.server import ExaminedServer
from patchbay.formats.render import WRITERS, format_for
from patchbay.models.options import TextOptions
from patchbay.models.policy import schema_error_messages
from patchbay.types import read_specs

_LINES: Final = 60
"""Lines of the prompt that is sent twice."""
_MOST_PROMPT: Final = 8_000
_DEEP_PROMPT: Final = 128_000
_SPARE: Final = 400
"""Tokens of the context that the long prompt leaves free."""
_USUAL_LINE: Final = 16
"""Tokens of a line of filler where the server does not count."""
_LONGER: Final = {
    "llama.cpp": "Start llama-server with -c TOKENS (it is shared by the slots of -np).",
    "Ollama": "Set OLLAMA_CONTEXT_LENGTH for the server, or num_ctx in the model's Modelfile.",
    "LM Studio": "Load the model with a greater context length.",
    "vLLM": "Start vLLM with --max-model-len TOKENS.",
    "SGLang": "Start SGLang with --context-length TOKENS.",
}
_CONTEXT_KEYS: Final = ("loaded_context_length", "max_model_len", "context_length", "context_window", "max_context_length")
_SMALL: Final = re.compile(r"(?<![\w.])(?:\d{2,3}m|0\.\d+b)(?![a-z0-9])", re.IGNORECASE)
"""The size of a model of less than a billion parameters, in its name."""


def _filler(lines: int) -> str:
    return "".join(f"{number}: the river runs past the mill and the old stone bridge.\n" for number in range(1, lines + 1))


async def measure_cache(server: ExaminedServer) -> Result:
    """Send the same prompt twice, and look for cached tokens in the second usage."""
    begin = f"Note {secrets.token_hex(4)}\n"  # new to the cache
    prompt = [{"role": "user", "content": f"{begin}{_filler(_LINES)}Say hello."}]
    first = await server.send(messages=prompt, max_tokens=4)
    second = await server.send(messages=prompt, max_tokens=4)
    if first.error is not None or second.error is not None:
        return "problem", f"A prompt of {_LINES} lines fails: {first.error or second.error}", _longer(server)
    counted = first.prompt_tokens
    server.facts.line_tokens = (counted or 0) / (_LINES + 1)
    server.facts.lines_per_second = (_LINES + 1) / max(first.seconds, 1e-3)
    cached = second.count("usage", "prompt_tokens_details", "cached_tokens") or second.count("timings", "cache_n")
    if cached:
        return "ok", f"Sent again, {cached} of {counted} tokens of a prompt come from the server's cache.", ""
    seen = f"Sent again, a prompt of {counted or 'unknown many'} tokens is reported without cached tokens"
    seen += f" ({first.seconds:.1f} s at first, {second.seconds:.1f} s again)."
    return "note", seen, "Turn on the server's prefix cache, if it has one: every round of tools sends the conversation again."


async def reported_context(server: ExaminedServer) -> int | None:
    """Return the length of the context as the server says it, None if it does not."""
    facts = server.facts
    settings = facts.description.get("default_generation_settings") if isinstance(facts.description, Mapping) else None
    rows: list[Mapping[str, Any]] = [{"context_length": settings.get("n_ctx")}] if isinstance(settings, Mapping) else []
    beside = {"Ollama": ("/api/ps", "models", "name"), "LM Studio": ("/api/v0/models", "data", "id")}.get(facts.kind)
    if beside is not None:
        path, member, key = beside
        listed = await server.member(path, member)
        rows += [each for each in listed or () if isinstance(each, Mapping) and each.get(key) == server.model]
    rows += [each for each in facts.models if each.get("id") == server.model]
    found = [row.get(key) for row in rows for key in _CONTEXT_KEYS]
    return next((value for value in found if isinstance(value, int) and value > 0), None)


async def measure_context(server: ExaminedServer) -> Result:
    """Send a long prompt with a word at its begin and one at its end, and find out whether the server has read all of it."""
    said = await reported_context(server)
    words = f"The server says that its context has {said:,} tokens" if said else "The server does not say how long its context is"
    most = _DEEP_PROMPT if server.deep else _MOST_PROMPT
    line = server.facts.line_tokens or _USUAL_LINE
    # No more than what a slow server reads in half of the time of a request.
    in_time = int(server.facts.lines_per_second * line * server.timeout / 2) or most
    size = min(said or most, most, in_time) - _SPARE
    first, last = (f"{name}-{secrets.randbelow(9000) + 1000}" for name in ("amber", "cobalt"))
    prompt = (
        f"The first code is {first}.\n{_filler(int(size / line))}The last code is {last}. Repeat the first and the last code."
    )
    asked = await server.send(messages=[{"role": "user", "content": prompt}], max_tokens=_SPARE - 100)
    if asked.error is not None:
        return "note", f"{words}; a prompt of {size:,} tokens is refused: {asked.error}", _longer(server)
    read, has_first, has_last = asked.prompt_tokens, first in asked.text, last in asked.text
    is_cut = read < 0.8 * size if read is not None and server.facts.line_tokens else has_last and not has_first
    if is_cut:
        seen = f"{words}; a prompt of {size:,} tokens is cut silently" + (f": {read:,} were read." if read is not None else ".")
        return "problem", seen, _longer(server)
    recalled = "both codes" if has_first and has_last else "one code" if has_first or has_last else "neither code"
    seen = f"{words}; a prompt of {size if read is None else read:,} tokens is answered, with {recalled} at its ends repeated."
    if asked.is_cut and read is not None:
        return "ok", f"{words}; a prompt of {read:,} tokens is read whole.", ""
    if has_last and (has_first or said or read is not None):
        return "ok", seen, "" if said or server.deep else "Look further with --deep."
    return "note", seen, "The model is weak with long prompts, or they are cut: keep them short, or use a larger model."


def _longer(server: ExaminedServer) -> str:
    return _LONGER.get(server.facts.kind, "Raise the context length at the server, or keep conversations shorter.")


async def measure_speed(server: ExaminedServer) -> Result:
    """Stream an answer of up to 64 tokens."""
    prompt = [{"role": "user", "content": "Count from one to forty, in words."}]
    asked = await server.ask(NATIVE, messages=prompt, max_tokens=64, stream=True, stream_options={"include_usage": True})
    if asked.error is not None:
        return "problem", f"A stream fails: {asked.error}", "Look at the server's log, and at proxies between that buffer or cut."
    written = asked.usage.completion_tokens
    seconds = asked.seconds - asked.first
    if written < 2 or seconds <= 0:
        return "note", f"The first part of a stream comes after {asked.first:.2f} s; its tokens are not counted.", ""
    return "ok", f"The first token comes after {asked.first:.2f} s, then {(written - 1) / seconds:.0f} tokens per second.", ""


async def try_calls(server: ExaminedServer) -> Result:
    """Demand a call as the proxy does with the recommended flags, whatever it takes."""
    facts = server.facts
    facts.options = _recommend(server)
    asked = await server.ask(
        TextOptions(**facts.options), messages=QUESTION, tools=[TOOL], tool_choice="required", max_tokens=512
    )
    advice = "Use a larger model, or a server that takes a grammar (llama.cpp, vLLM, SGLang)."
    if asked.error is not None:
        return "problem", f"Through Patchbay, a demanded call fails: {asked.error}", advice
    assert asked.exchange is not None
    mode, constraint, calls = asked.exchange.mode, asked.exchange.constraint, asked.reply.tool_calls
    how = {"native": "natively", "text": "from the model's text"}.get(mode, "")
    how += f" under a {constraint}" if constraint else ""
    again = f", asked {plural(len(asked.documents), 'time')}" if len(asked.documents) > 1 else ""
    if problems := schema_error_messages(read_specs([TOOL]), calls):
        return "problem", f"Through Patchbay, a call comes {how}{again}, which does not fit: {problems[0]}", advice
    facts.works = True
    return "ok", f"Through Patchbay, a demanded call comes {how}{again}: {calls[0].name} {calls[0].raw_arguments}.", ""


def _recommend(server: ExaminedServer) -> dict[str, Any]:
    """Return the options that differ from the default."""
    facts = server.facts
    options: dict[str, Any] = {}
    if facts.tools:
        options["tools"] = "native" if facts.tools == "native" else "text"
    if options.get("tools") != "text":
        return options
    if facts.format in WRITERS and format_for(server.model) != facts.format:
        options["format"] = facts.format
    if facts.backend is not None and (facts.schema if facts.backend is Backend.SCHEMA else facts.grammar) == "refused":
        options["constrain"] = "off"
    if _is_small(server):
        options["copy_arguments"] = True
    return options


def _is_small(server: ExaminedServer) -> bool:
    row = next((each for each in server.facts.models if each.get("id") == server.model), {})
    meta = row.get("meta")
    parameters = meta.get("n_params") if isinstance(meta, Mapping) else None
    return parameters < 1e9 if isinstance(parameters, int) else _SMALL.search(server.model) is not None


async def recommend(server: ExaminedServer) -> Result:
    """Return the command line for this server, and why."""
    facts = server.facts
    reasons = {
        "native": "the model calls tools natively",
        "refused": "tools are refused, so they go into the prompt",
        "ignored": "tools are silently ignored, so they go into the prompt",
        "unclear": "no native call came, so tools go into the prompt",
        "": "it is not known how the model takes tools",
    }
    why = [reasons[facts.tools]]
    why += [f"it writes calls as {facts.options['format']}"] if "format" in facts.options else []
    why += ["the server takes no constraint"] if "constrain" in facts.options else []
    why += ["the model is small: arguments are copied from the conversation"] if "copy_arguments" in facts.options else []
    flags = [f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}") for name, value in facts.options.items()]
    key = "UPSTREAM_API_KEY=… " if server.settings.upstream_key is not None else ""
    command = " ".join([f"{key}patchbay proxy --upstream {shlex.quote(server.url)}", *flags])
    if not facts.works:
        return "note", command, f"Do not expect calls from this model: {'; '.join(why)}."
    return "ok", command, f"Use it: {'; '.join(why)}."


PROBES: Final = {
    "cached_tokens": measure_cache,
    "context": measure_context,
    "speed": measure_speed,
    "calls": try_calls,
    "recommended": recommend,
}
