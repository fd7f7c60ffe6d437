"""Words whose value the file does not state: which values to try, so that only what holds for all of them is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from dsv4check.deployment import Command, FlagUse, ServeFlags, Token
from dsv4check.launchfiles.records import FileWord
from dsv4check.records import dataclass
from dsv4check.releases.flag_table import FlagTable

MAX_VARIANTS: Final = 16
_PARALLEL: Final = frozenset(
    ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "data_parallel_size_local")
)
_TRIED: Final = {
    "max_model_len": ("8192", "131072", "1048576"),
    "max_num_seqs": ("16", "256", "1024"),
    "max_num_batched_tokens": ("2048", "8192", "32768"),
    "gpu_memory_utilization": ("0.7", "0.9", "0.97"),
    "block_size": ("64", "128", "256"),
    "port": ("8000",),
    "nnodes": ("1", "2"),
    "node_rank": ("0",),
    "data_parallel_rank": ("0",),
    "data_parallel_start_rank": ("0",),
    "master_port": ("29501",),
    "data_parallel_rpc_port": ("29550",),
}
"""Ordinary values of flags, from small to large."""


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
        if use is None:
            if word.text == flags.model:
                # The model itself is unknown: that is for the caller to say.
                continue
            if _whole(word):
                further += word.open
            choices[index] = (None,)
            continue
        values = _values(use, word, table, gpus)
        if values is None:
            continue
        choices[index] = values
        shown = [value.rpartition("=")[2] if value is not None else "left out" for value in values]
        tried.append(f"{', '.join(word.open)} (of {use.flag}): {', '.join(shown)}")
    return Unknowns(tuple(_variants(words, choices, flags)), tuple(tried), tuple(dict.fromkeys(further)))


def _use_at(flags: ServeFlags, index: int) -> FlagUse | None:
    return next((use for use in flags.uses if use.token_span[0] <= index < use.token_span[1]), None)


def _whole(word: FileWord) -> bool:
    return word.text in word.open


def _values(use: FlagUse, word: FileWord, table: FlagTable, gpus: int | None) -> tuple[str | None, ...] | None:
    """Words to put in the place of this one; None where its text does not matter (a name, a path)."""
    spec = table.by_dest.get(use.dest)
    if spec is None:
        return (None,)
    head, equals, value = word.text.partition("=")
    prefix = head + equals if equals and word.text.startswith("-") else ""
    if prefix and not any(name in value for name in word.open):
        return None
    if use.dest in _PARALLEL:
        values = [str(size) for size in (1, 2, 4, 8, 16) if gpus is None or size <= gpus]
    elif use.dest in _TRIED:
        values = list(_TRIED[use.dest])
    elif spec.choices:
        values = [str(choice) for choice in spec.choices if choice is not None][:8]
    elif spec.is_json:
        return (None,)
    elif "int" in spec.kind:
        values = ["1", "8", "4096"]
    elif "float" in spec.kind:
        values = ["0.1", "0.9"]
    else:
        return None
    return tuple(prefix + value for value in values)


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
        # Too many to try all: each value of each word at least once.
        longest = max(map(len, choices.values()))
        combinations = [tuple(values[k % len(values)] for values in choices.values()) for k in range(longest)]
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


def command_of(
    program: tuple[str, ...], words: Sequence[FileWord | None], tokens: Sequence[Token], env: dict[str, str], entry: str
) -> Command:
    """A command of some words; ``tokens`` are those of all words, with their places."""
    kept = [
        token if token.text == word.text else replace(token, text=word.text)
        for word, token in zip(words, tokens, strict=True)
        if word is not None
    ]
    return Command(program, tuple(kept), env, entry)
