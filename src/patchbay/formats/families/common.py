"""What many families share: the usual reasoning markers, and the special tokens of the usual chat templates."""

from __future__ import annotations

from patchbay.formats.rows import Thought, Wrapper

THINK = Thought(openers=("<think>",), closers=("</think>",))
TOOL_CALL = Wrapper(openers=("<tool_call>",), closers=("</tool_call>",))
TOOL_CALLS = Wrapper(openers=("<tool_calls>",), closers=("</tool_calls>",))

TURNS = (
    # ChatML
    "<|im_start|>assistant",
    "<|im_start|>",
    "<|im_end|>",
    # Llama 3
    "<|start_header_id|>assistant<|end_header_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|eom_id|>",
    # Llama 4
    "<|header_start|>assistant<|header_end|>",
    "<|eot|>",
    "<|eom|>",
    # what most of the others end with
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end_of_turn|>",
    "<|end_of_sentence|>",
    "<|endofturn|>",
    "[|endofturn|]",
    "<|end|>",
    "<|return|>",
    "<|stop|>",
    "<|eos|>",
    "</s>",
    "<eos>",
    "[EOS]",
    # Gemma
    "<start_of_turn>model",
    "<end_of_turn>",
    # DeepSeek, and templates that write its tokens with ASCII pipes
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜Assistant｜>",
    "<|end▁of▁sentence|>",
    # Granite
    "<|start_of_role|>assistant<|end_of_role|>",
    # Cohere
    "<|START_OF_TURN_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    # MiniMax M1
    "<end_of_sentence>",
)
"""Tokens that begin and end a turn."""
