"""Changes of a ``--config`` file."""

from __future__ import annotations

import pytest
import yaml

from dsv4check.deployment import Token
from dsv4check.gate.rewrite import NotPlainError
from dsv4check.gate.settings_mapping import with_settings
from dsv4check.problems import Origin
from tests.gate.fixing import before_and_after

CONFIG = [Token("--config", Origin("flag", "--config")), Token("c.yaml", Origin("flag", "c.yaml"))]


def added(text: str, *words: str) -> str:
    return with_settings(text, CONFIG, [*CONFIG, *(Token(word, Origin("flag", word)) for word in words)])


CASES = {
    "a value": ("model: m\nkv-cache-dtype: ⟪bfloat16→fp8⟫\nport: 80\n", ("--kv-cache-dtype", "fp8")),
    "underscores": ("kv_cache_dtype: ⟪bfloat16→fp8⟫\n", ("--kv-cache-dtype", "fp8")),
    "a joined word": ("kv-cache-dtype: ⟪bfloat16→fp8⟫\n", ("--kv-cache-dtype=fp8",)),
    "a comment": ("kv-cache-dtype: ⟪bfloat16→fp8⟫  # why: 'x'\n", ("--kv-cache-dtype", "fp8")),
    "double quotes": ('kv-cache-dtype: ⟪"bfloat16"→"fp8"⟫ # x\n', ("--kv-cache-dtype", "fp8")),
    "single quotes": ("kv-cache-dtype:   ⟪'bfloat16'→'fp8'⟫\n", ("--kv-cache-dtype", "fp8")),
    "a number": ("block-size: ⟪128→256⟫\n", ("--block-size", "256")),
    "a number in quotes": ('block-size: ⟪"128"→"256"⟫\n', ("--block-size", "256")),
    "a hash in quotes": ('served-model-name: ⟪"a # b"→"c"⟫ # d\n', ("--served-model-name", "c")),
    "CRLF": ("model: m\r\nblock-size: ⟪128→256⟫\r\nport: 80\r\n", ("--block-size", "256")),
    "no newline": ("model: m\nblock-size: ⟪128→256⟫", ("--block-size", "256")),
    "an empty value": ("model: m\nblock-size:⟪→ 256⟫\nport: 80\n", ("--block-size", "256")),
    "a negative value": ("seed: ⟪1→-1⟫\n", ("--seed", "-1")),
    "a key added": ("model: m\n⟪→kv-cache-dtype: fp8\n⟫", ("--kv-cache-dtype", "fp8")),
    "a key added, CRLF": ("model: m\r\n⟪→kv-cache-dtype: fp8\r\n⟫", ("--kv-cache-dtype", "fp8")),
    "a key added without newline": ("model: m⟪→\nkv-cache-dtype: fp8\n⟫", ("--kv-cache-dtype", "fp8")),
    "a key added with underscores": (
        "model: m\nmax_model_len: 8\n⟪→kv_cache_dtype: fp8\n⟫",
        ("--kv-cache-dtype", "fp8"),
    ),
    "a key added in front of the document's end": (
        "---\nmodel: m\n⟪→block-size: 256\n⟫...\n",
        ("--block-size", "256"),
    ),
    "a switch": ("model: m\n⟪→enforce-eager: true\n⟫", ("--enforce-eager",)),
    "a switch turned": ("enforce-eager: ⟪false→true⟫ # slow\n", ("--enforce-eager",)),
    # vLLM drops what is false: the negative form is a key of its own.
    "a negative switch": ("model: m\n⟪→no-enable-chunked-prefill: true\n⟫", ("--no-enable-chunked-prefill",)),
    "an empty file": ("⟪→block-size: 256\n⟫", ("--block-size", "256")),
    "a file of comments": ("# nothing\n⟪→block-size: 256\n⟫", ("--block-size", "256")),
    "indented keys": ("  model: m\n⟪→  block-size: 256\n⟫", ("--block-size", "256")),
    "a key added behind a block": ("model: m\nchat-template: |\n  x\n⟪→port: 80\n⟫", ("--port", "80")),
    "JSON as text": (
        'speculative-config: ⟪\'{"method": "mtp"}\'→\'{"method": "mtp", "num_speculative_tokens": 1}\'⟫\n',
        ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'),
    ),
    "JSON added": (
        'model: m\n⟪→attention-config: \'{"backend": "X"}\'\n⟫',
        ("--attention-config", '{"backend": "X"}'),
    ),
    "two flags": (
        "model: m\nblock-size: ⟪128→256⟫\n⟪→kv-cache-dtype: fp8\n⟫",
        ("--block-size", "256", "--kv-cache-dtype", "fp8"),
    ),
    "the same key deeper down": ("x:\n  block-size: 128\nblock-size: ⟪128→256⟫\n", ("--block-size", "256")),
    "text around": ("# Größe 设\nmodel: m # ü\nblock-size: ⟪128→256⟫ # é\n", ("--block-size", "256")),
}


@pytest.mark.parametrize("case", CASES)
def test_case(case: str) -> None:
    marked, words = CASES[case]
    before, after = before_and_after(marked)
    assert added(before, *words) == after
    assert isinstance(yaml.safe_load(after), dict)


@pytest.mark.parametrize(
    "text",
    [
        "speculative-config:\n  method: mtp\n",
        "speculative-config: {method: mtp}\n",
        "speculative-config: |\n  {}\n",
        "speculative-config: >-\n  {}\n",
        "speculative-config: &a '{}'\n",
        "speculative-config: *a\n",
        "speculative-config: [1]\n",
        "speculative-config: !!str x\n",
        "speculative-config: 'a\n  b'\n",
        "speculative-config: a\n  b\n",
        "speculative-config : x\nspeculative_config: y\n",
        "- a\n",
        "a: [\n",
        "# x" * (1 << 16),
        "{speculative-config: x}\n",
        "model: m\n---\nmodel: n\n",
    ],
)
def test_what_is_not_plain_is_refused(text: str) -> None:
    with pytest.raises(NotPlainError):
        added(text, "--speculative-config", "{}")


def test_words_that_go_are_refused() -> None:
    with pytest.raises(NotPlainError, match="takes words away"):
        with_settings("model: m\n", CONFIG, [CONFIG[0]])


def test_words_in_front_are_refused() -> None:
    token = Token("other", Origin("flag", "other"))
    with pytest.raises(NotPlainError, match="no flag"):
        with_settings("model: m\n", CONFIG, [token, *CONFIG])
