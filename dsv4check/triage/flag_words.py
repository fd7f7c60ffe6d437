"""Words of a command that a report shows, looked at for what triage needs of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import bundled_config
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.releases.flag_table import FlagTable, load_flag_table
from dsv4check.releases.timeline import newest_release
from dsv4check.triage.commands import ShownLaunch
from dsv4check.triage.model_hint import published_like
from dsv4check.triage.version_banner import is_preview


def table_of(version: str | None) -> FlagTable:
    """The flags of the release that a version text means; of the newest one where it means none."""
    if version is not None and not is_preview(version):
        try:
            return load_flag_table(resolve_vllm(version).release)
        except InputError:
            pass
    return load_flag_table(newest_release())


def flags_of(launch: ShownLaunch) -> list[str]:
    """A command's words without its model."""
    words = [*launch.words]
    for index, word in enumerate(words):
        if word == "--model":
            return words[:index] + words[index + 2 :]
        if word.startswith("--model="):
            return words[:index] + words[index + 1 :]
    if launch.model is not None and launch.model in words:
        words.remove(launch.model)
    return words


def longest_context(model: str | None) -> int | None:
    """The context length of a known model, which ``--max-model-len`` need not repeat."""
    entry = published_like([model]) if model else None
    if entry is None:
        return None
    config = bundled_config(entry.id)
    inner = config.get("text_config")
    value = (inner if isinstance(inner, Mapping) else config).get("max_position_embeddings")
    return value if isinstance(value, int) else None


def tensor_parallel(words: Sequence[str]) -> int | None:
    """The tensor-parallel size that words state."""
    names = ("--tensor-parallel-size", "--tensor_parallel_size", "-tp", "--tp")
    return next((size for name in names if (size := number_after(words, name)) is not None), None)


def number_after(words: Iterable[str], flag: str) -> int | None:
    """The number that a flag is given, behind it or after ``=``."""
    follows = False
    for word in words:
        if follows:
            return int(word) if word.isdecimal() and len(word) < 7 else None
        name, equals, value = word.partition("=")
        if equals and name == flag and value.isdecimal() and len(value) < 7:
            return int(value)
        follows = word == flag
    return None
