"""What the error of a model's server is about, in the words of many servers: OpenAI's codes, and the numbers of tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from patchbay.errors import PatchbayError, UpstreamError


@dataclass(frozen=True)
class ErrorSubject:
    """What an error is about: OpenAI's code, its type in an error body, and its HTTP status."""

    code: str
    kind: str
    status: int


CONTEXT: Final = ErrorSubject("context_length_exceeded", "invalid_request_error", 400)
QUOTA: Final = ErrorSubject("insufficient_quota", "insufficient_quota", 429)
_RATE: Final = ErrorSubject("rate_limit_exceeded", "rate_limit_error", 429)
_MODEL: Final = ErrorSubject("model_not_found", "invalid_request_error", 404)
_KEY: Final = ErrorSubject("invalid_api_key", "authentication_error", 401)
_BY_STATUS: Final = {401: _KEY, 402: QUOTA, 429: _RATE}
_TOO_LONG: Final = (
    r"context[_ ]length[_ ]exceeded|exceed_context_size|maximum (?:context|model|prompt|input) length|context overflow"
    # llama.cpp, Ollama, OpenAI's Responses, LM Studio, MiniMax, vLLM, SGLang, TabbyAPI
    r"|exceed\w*[^.\n]{0,60}\bcontext|context (?:size|length|window) (?:has been |is |was )?exceed|context length (?:is|of) only"
    r"|greater than (?:the context length|max_seq_len)|longer than the (?:model's|maximum)"
    r"|(?:input|prompt) (?:token count|tokens|length)[^.\n]{0,40} exceed"
    # Anthropic, Bedrock, TGI, Mistral, Groq, Kimi, DashScope, Z.ai
    r"|(?:prompt|input) (?:is )?too long|`inputs`[^\n]{0,30} must (?:be <=|have less)|too large for model with \d"
    r"|reduce the length of (?:the|your) (?:messages|input|prompt)|model token limit|range of input length|prompt exceeds max"
)
_UNKNOWN: Final = (
    r"\bmodel\b\S*(?: \S+){0,4}? (?:(?:was |is )?not found|(?:does )?not exist)"
    r"|not a valid model|invalid model name|no such model"
)
_SENTENCES: Final = (
    (QUOTA, r"insufficient[_ ](?:quota|balance|credits?|funds)|credit balance is too low"),
    (_RATE, r"rate[_ ]?limit[_ ](?:exceeded|error|reached)|tokens per minute|too many requests"),
    (CONTEXT, _TOO_LONG),
    (_MODEL, rf"model_not_found|{_UNKNOWN}"),
    (_KEY, r"(?:invalid|incorrect|wrong)[_ ]api[_ -]?key|api key not valid"),
)
_CODES: Final = r'"(?:code|type)"\s*:\s*"(\w+)"'
_MOST_READ: Final = 4096
_MOST_OF_A_MESSAGE: Final = 1000
"""Characters: an error may quote the request, and with it anything."""


def subject_of(error: PatchbayError) -> ErrorSubject | None:
    """Return what a server's error is about; None for any other."""
    if not isinstance(error, UpstreamError) or (error.upstream_status is None and not error.body):
        return None
    said = "\n".join([str(error)[:_MOST_OF_A_MESSAGE], *re.findall(_CODES, error.body[:_MOST_READ])])
    for subject, sentence in _SENTENCES:
        if re.search(sentence, said, re.IGNORECASE):
            return subject
    return _BY_STATUS.get(error.upstream_status or 0)


def status_of(error: PatchbayError) -> int:
    """Return the status of an error: OpenAI's, if it is known what a server's error is about."""
    subject = subject_of(error)
    return error.status if subject is None else subject.status


_PROMPT: Final = (
    r"(\d+)(?: tokens)? (?:in (?:the|your) (?:messages|prompt)|input tokens|(?:from|of) the input|of text input|`inputs`)"
    r"|(?:request \(|input \(|(?:input|prompt) length |token count |prompt has |the first |resulted in |contains |context limit: "
    r"|too long: |n_prompt_tokens\"?: ?|given: )(?:of )?\(?(\d+)|prompt \(length (\d+)"
)
_OUTPUT: Final = (
    r"(\d+)(?: tokens)? (?:in the (?:completion|output)|output tokens|for the completion|`max_new_tokens`)"
    r"|is too large: (\d+)|context limit: \d+ \+ (\d+)"
)
_LIMIT: Final = (
    r"(?:(?:context|model|maximum prompt) length(?: is|:| of)?(?: only)?|context size|allowed(?: input)?(?: length)?(?: of)?"
    r"|\bn_ctx\"?:|max_seq_len|limit(?: of|:)|must be <=|must have less than|model with|>)[ (]*(\d++)(?! \+)"
)


def context_tokens(error: PatchbayError) -> tuple[int | None, int | None, int | None] | None:
    """Return the tokens of the prompt, of the requested output and of the context in an error about them; None for any other."""
    if subject_of(error) is not CONTEXT:
        return None
    text = f"{error} {getattr(error, 'body', '')}"[:_MOST_READ]
    found = (re.search(pattern, text, re.IGNORECASE) for pattern in (_PROMPT, _OUTPUT, _LIMIT))
    prompt, output, limit = (None if each is None else int(next(filter(None, each.groups()))) for each in found)
    return prompt, output, limit
