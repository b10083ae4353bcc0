"""A model of random weights as a GGUF file of 300 KB: a llama of one layer whose tokens are bytes and some words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from patchbay.formats.render import WRITERS
from patchbay.formats.render.styles import M3, Elements

_WIDTH: Final = 32
_CONTEXT: Final = 8192
_WORDS: Final = ["the", "\n", "\n\n", '": "', '", "', "},", '"}', "]}", "}}", "```", "tool", "call", "name", '"name"', "arguments", "true", "null",
                 "None", "12", " 3", "</", "parameter", "invoke", "function", "<|", "|>", " {", "né", "漢字", "😀"]  # fmt: skip
"""Tokens of several bytes, as a real vocabulary has them: a constraint must not depend on where tokens end."""
_LIKELY: Final = {'"': 1.8, "}": 1.5, "]": 1.5, ")": 0.8, "'": 0.8, "<": 0.4, ",": 0.4}
"""Bytes that texts would seldom end with otherwise."""
_UNWRITTEN: Final = (0xC0, 0xC1, 0xE0, 0xF0)
"""Bytes that can begin a character's longer, invalid spelling, which llama.cpp counts as that character."""
_END: Final = "<|endofrandom|>"
_TEMPLATE: Final = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def write_model(path: Path, seed: int) -> None:
    """Write the file. The same seed gives the same weights."""
    rng = np.random.default_rng(seed)
    letters = _byte_letters()
    words = list(dict.fromkeys([*_WORDS, *_closers(), *(marker for writer in WRITERS.values() for marker in writer.markers)]))
    tokens = [*letters.values(), *words, _END]
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.USER_DEFINED] * len(words) + [gguf.TokenType.CONTROL]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_WIDTH)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{letters[ord('t')]} {letters[ord('h')]}"])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(_TEMPLATE)

    def weights(*shape: int) -> Any:
        return rng.normal(0, 0.4, shape).astype(np.float32)

    embedding, output = weights(len(tokens), _WIDTH), weights(len(tokens), _WIDTH) / 2
    embedding[:, 0] = 2  # a constant, so that the first column of the output is a bias
    for byte, letter in letters.items():
        output[tokens.index(letter), 0] = _LIKELY.get(chr(byte), 0.2 if 32 <= byte < 127 else -1.2)
    for byte in (*_UNWRITTEN, *range(0xF5, 0x100)):
        output[tokens.index(letters[byte]), 0] = -50
    for index, token in enumerate(tokens[256:-1], 256):
        output[index, 0] = 1.1 if token in _closers() else -0.5
    output[-1, 0] = 2.5
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output.weight", output)
    writer.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", np.ones(_WIDTH, np.float32))
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        matrix = weights(_WIDTH, _WIDTH)
        if name in ("attn_output", "ffn_down"):
            matrix *= 0.1
            matrix[0] = 0  # the first column stays what it is
        writer.add_tensor(f"blk.0.{name}.weight", matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _closers() -> list[str]:
    """What stands behind reasoning or a text without quotes, which would hardly ever be written a byte at a time."""
    reasoning = {writer.layout.reasoning[1].strip() for writer in WRITERS.values() if writer.layout.reasoning} - {""}
    ends = [writer.style.value.partition("{value}")[2] for writer in WRITERS.values() if isinstance(writer.style, Elements)]
    return sorted({*ends, *reasoning, *(end.strip() for end in ends), f"{M3}</", '<|"|>', "<escape>"})


def _byte_letters() -> dict[int, str]:
    """The letter of each byte in GPT-2's vocabulary: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(others)}
