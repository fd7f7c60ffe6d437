"""A small tokenizer for models that come without one: byte level, with the special tokens vLLM's parsers look for.

Tokens of a real checkpoint are not needed to start the engine, except for how many there are.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

_BEGIN, _END, _PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
_SPECIAL = (
    _BEGIN,
    _END,
    _PAD,
    "<think>",
    "</think>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "｜DSML｜",
    "<|tool_call|>",
    "<tool_call>",
    "</tool_call>",
    "<|channel|>",
    "<|image|>",
    "<｜image｜>",
)
"""Tokens that DeepSeek's and related reasoning and tool parsers ask the tokenizer for."""


def write(folder: Path) -> None:
    """Put tokenizer files beside a config.json; without the package ``tokenizers`` there are none."""
    for name, text in _files().items():
        (folder / name).write_text(text, encoding="utf-8")


@cache
def _files() -> dict[str, str]:
    try:
        import tokenizers
    except ImportError:
        return {}
    library: Any = tokenizers
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: number for number, letter in enumerate(sorted(alphabet))}
    made = library.Tokenizer(library.models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = library.decoders.ByteLevel()
    made.add_special_tokens([library.AddedToken(token, special=True) for token in _SPECIAL])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BEGIN,
        "eos_token": _END,
        "pad_token": _PAD,
        "model_max_length": 1048576,
    }
    return {"tokenizer.json": made.to_str(), "tokenizer_config.json": json.dumps(config)}
