"""What an author is told to do about what the doctor has found. Data only."""

from __future__ import annotations

from typing import Final

FLUSH: Final = "Write each answer as one line, with a newline at its end, and flush standard output behind it."
ANSWER_ALL: Final = "Answer every request with its id; {} is the answer of a hook that has nothing to say."
CATCH: Final = "Read each line in a try of its own; pass over what is no object, and answer params that are none with an error."
STDERR: Final = "Print to standard error: standard output is for answers only."
BOTH: Final = "A hook that is asked before_llm is asked after_llm, too, and before_tool brings after_tool: answer them with {}."
QUIET: Final = "Leave messages without an id unanswered, also those of kinds that you do not know."
BY_HAND: Final = "Run the command by hand: it says why."
START: Final = (
    "There is no shell: name the interpreter (python3 hook.py), a path that is right from here, each argument by itself."
)
LOOP: Final = "Read requests from standard input until it ends, and answer each: a hook that ends is started again, or given up."
REPLY: Final = 'An answer is one line: {"jsonrpc":"2.0","id":1,"result":{}}, its id the whole number of the request.'
JSON: Final = "Write each answer with a JSON library: texts in double quotes, no comma at the end, true and false, no NaN."
ANSWERS: Final = 'Which actions and members each answer has: docs/hook-processes.md, "The wire".'
OFFER: Final = (
    'A tool is {"type":"function","function":{"name":"...","description":"...","parameters":{...}}}, with a JSON Schema.'
)
NOT_ASKED: Final = 'Put before_tool into its "intercept": nobody else would answer calls of its tools.'
END: Final = "End when standard input ends: the host has closed it, or is gone."
UNKNOWN: Final = "Answer methods that you do not know with the error code -32601: later hosts may have more."
BYTES: Final = "Read and write bytes, and decode them as UTF-8: text streams go by the locale."
