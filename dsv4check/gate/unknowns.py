"""Words whose value the file does not state: which values to try, so that only what holds for all of them is said."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from dsv4check.deployment import FlagUse, ServeFlags
from dsv4check.launchfiles.records import FileWord
from dsv4check.records import dataclass
from dsv4check.releases.flag_table import FlagSpec, FlagTable

MAX_VARIANTS: Final = 16
_PARALLEL: Final = frozenset(
    ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "data_parallel_size_local")
)
_TRIED: Final[Mapping[str, tuple[str | None, ...]]] = {
    "max_model_len": ("1024", "8192", "131072", "1048576"),
    "max_num_seqs": ("1", "16", "256", "1024"),
    "max_num_batched_tokens": ("1024", "8192", "32768", "1048576"),
    "gpu_memory_utilization": ("0.5", "0.9", "0.99"),
    "block_size": ("32", "64", "128", "256", "512"),
    "kv_cache_memory_bytes": ("1073741824", "17179869184", "1099511627776"),
    "num_gpu_blocks_override": ("64", "4096", "4194304"),
    "optimization_level": ("0", "1", "2", "3"),
    "port": ("8000",),
    "nnodes": ("1", "2"),
    "node_rank": ("0",),
    "data_parallel_rank": ("0",),
    "data_parallel_start_rank": ("0",),
    "master_port": ("29501",),
    "data_parallel_rpc_port": ("29550",),
    # Texts that vLLM looks up in a list of its own; without the flag it chooses by itself.
    "kv_cache_dtype": ("auto", "fp8", "fp8_e4m3", "fp8_ds_mla", "bfloat16", "nvfp4"),
    "attention_backend": (None, "FLASHMLA_SPARSE_DSV4", "FLASHINFER_MLA_SPARSE_DSV4"),
    "tokenizer_mode": (None, "deepseek_v4"),
    "reasoning_parser": (None, "deepseek_v4"),
    "tool_call_parser": (None, "deepseek_v4", "deepseek_v3"),
    "quantization": (None, "fp8"),
    "load_format": (None, "dummy"),
    "distributed_executor_backend": (None, "mp", "ray", "uni"),
    "data_parallel_backend": (None, "mp", "ray"),
    "spec_model": (None,),
    "mamba_backend": (None,),
    "config_format": (None,),
    "hf_config_path": (None,),
    "lora_modules": (None,),
}
"""Ordinary values of flags, from small to large: between them every finding that some value removes is removed."""
_INTEGERS: Final = ("0", "1", "2", "8", "64", "4096", "1048576")
_FLOATS: Final = ("0", "0.1", "0.9", "1", "64")
_IN_JSON: Final = ("1", "2", "3", "5", "8", "64", "1024", "65536", "0", "0.5", "true", "false")
"""What may stand in the place of an unknown part of JSON."""


@dataclass(frozen=True, slots=True)
class Unknowns:
    """What is not known of a command."""

    variants: tuple[tuple[FileWord | None, ...], ...]
    """The command's words with a value in place of every unknown one (None: the word is left out)."""
    tried: tuple[str, ...] = ()
    """For people: ``$TP (of --tensor-parallel-size): 1, 2, 4, 8``."""
    further: tuple[str, ...] = ()
    """Expansions that may hold any further flags: ``$EXTRA_ARGS``, ``"$@"``."""

    @property
    def settled(self) -> bool:
        """True where every word is known."""
        return not self.tried and not self.further


def unknowns_of(words: Sequence[FileWord], flags: ServeFlags, table: FlagTable, gpus: int | None) -> Unknowns:
    """Find the words with an unknown part and the values to try for them.

    ``flags`` is the reading of the words as they stand, ``gpus`` how many GPUs the launch has, where that is known.
    """
    choices: dict[int, tuple[str | None, ...]] = {}
    tried: list[str] = []
    further: list[str] = []
    for index, word in enumerate(words):
        if not word.open:
            continue
        use = _use_at(flags, index)
        if use is None or use.dest == "config":
            if word.text in (flags.model, f"--model={flags.model}"):
                # The model itself is unknown: that is for the caller to say.
                continue
            further += word.open
            choices[index] = (None,)
            if index and words[index - 1].text == "--config":
                # The parser takes the file in: it is no flag with a value of its own.
                choices[index - 1] = (None,)
            continue
        values = _values(use, word, table, gpus)
        if values is None:
            continue
        choices[index] = values
        shown = [_shown(value) for value in values]
        tried.append(f"{', '.join(word.open)} (of {use.flag}): {', '.join(shown)}")
    return Unknowns(tuple(_variants(words, choices, flags)), tuple(tried), tuple(dict.fromkeys(further)))


def _use_at(flags: ServeFlags, index: int) -> FlagUse | None:
    return next((use for use in flags.uses if use.token_span[0] <= index < use.token_span[1]), None)


def _shown(value: str | None) -> str:
    if value is None:
        return "left out"
    name, equals, rest = value.partition("=")
    return rest if equals and name.startswith("-") else value


def _values(use: FlagUse, word: FileWord, table: FlagTable, gpus: int | None) -> tuple[str | None, ...] | None:
    """Words to put in the place of this one; None where its text does not matter (a name, a path)."""
    spec = table.by_dest.get(use.dest)
    if spec is None:
        return (None,)
    head, equals, value = word.text.partition("=")
    prefix = head + equals if equals and word.text.startswith("-") else ""
    if not prefix:
        value = word.text
    if prefix and not any(name in value for name in word.open):
        # The flag's own name is not known.
        return (None,)
    candidates = _candidates(use, spec, value, word.open, gpus)
    if candidates is None:
        return None
    return tuple(None if item is None else prefix + _filled(value, word.open, item) for item in candidates)


def _candidates(
    use: FlagUse, spec: FlagSpec, value: str, unknown: tuple[str, ...], gpus: int | None
) -> Sequence[str | None] | None:
    if spec.is_json:
        if use.path:
            return (None, *_IN_JSON)
        # A text in its place shows whether it stands inside quotes: then it is a name, and no number.
        in_text = not _is_json(_replaced(value, unknown, '"x"'))
        return (None,) if in_text else _IN_JSON
    if use.dest in _PARALLEL:
        return [str(size) for size in (1, 2, 4, 8, 16) if gpus is None or size <= gpus]
    if spec.choices:
        choices = [str(choice) for choice in spec.choices if choice is not None]
        return choices if len(choices) <= MAX_VARIANTS else [None, *choices[: MAX_VARIANTS - 1]]
    if use.dest in _TRIED:
        return _TRIED[use.dest]
    if "int" in spec.kind:
        return _INTEGERS
    return _FLOATS if "float" in spec.kind else None


def _filled(value: str, unknown: tuple[str, ...], item: str) -> str:
    """A value with something in the place of its unknown part; of all of it, where several parts are unknown."""
    if value.startswith("{"):
        return _replaced(value, unknown, item)
    if value in unknown or len(unknown) > 1 or not item.isdecimal():
        return item
    return _replaced(value, unknown, item)


def _replaced(value: str, unknown: tuple[str, ...], item: str) -> str:
    for name in unknown:
        value = value.replace(name, item)
    return value


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _variants(
    words: Sequence[FileWord], choices: dict[int, tuple[str | None, ...]], flags: ServeFlags
) -> Iterator[tuple[FileWord | None, ...]]:
    places = list(choices)
    count = 1
    for values in choices.values():
        count *= len(values)
    if count <= MAX_VARIANTS:
        combinations = list(product(*choices.values()))
    else:
        combinations = list(dict.fromkeys(_sample(list(choices.values()))))
    for combination in combinations[:MAX_VARIANTS]:
        variant: list[FileWord | None] = list(words)
        for place, value in zip(places, combination, strict=True):
            variant[place] = None if value is None else replace(words[place], text=value)
            if value is None:
                # A flag goes with its value.
                use = _use_at(flags, place)
                if use is not None:
                    variant[use.token_span[0] : use.token_span[1]] = [None] * (use.token_span[1] - use.token_span[0])
        yield tuple(variant)


def _sample(choices: Sequence[tuple[str | None, ...]]) -> Iterator[tuple[str | None, ...]]:
    """Some of too many combinations: each value of each word, first with the others as large, then as small."""
    for k in range(max(map(len, choices))):
        yield tuple(values[min(k, len(values) - 1)] for values in choices)
    for place, values in enumerate(choices):
        for value in reversed(values):
            yield tuple(value if at == place else others[0] for at, others in enumerate(choices))
