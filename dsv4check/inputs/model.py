"""The model of a launch: where its config.json is, and what the release makes of it."""

from __future__ import annotations

import codecs
import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4check.deployment import Model, ServeFlags
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import (
    CONFIG_NAME,
    PublishedModel,
    bundled_config,
    cached_snapshot,
    deep_merge,
    find_published,
    guess_sibling,
    hub_cache,
    read_file,
)
from dsv4check.inputs.config_checks import config_problems
from dsv4check.inputs.config_source import ConfigSource
from dsv4check.inputs.config_values import NUMBERS, ValueIssue, check_values, value_issues, without_value
from dsv4check.inputs.model_config import MAX_CONFIG_BYTES, parse_config, read_config
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts, load_facts
from dsv4check.releases.timeline import nearest_release

if TYPE_CHECKING:
    from dsv4check.checkpoint.tensors import Checkpoint

_REQUANTISED = re.compile(r"nvfp4|mxfp4|w\d+a\d+|int[48]|awq|gptq|quark|autoround|fp8|gguf|bf16", re.I)
"""A name that says the weights were quantised anew, so the sibling's quantization_config does not apply."""
_HUB_VARIABLES = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")


@dataclass(frozen=True, slots=True)
class _Found:
    """A config.json that was located."""

    config: Mapping[str, Any]
    source: str
    """For people: path, or bundled id with the reason it stands in."""
    origin: Origin
    published: PublishedModel | None = None
    assumed: str = ""
    """Id of the sibling whose config stands in for one that is not at hand."""
    unknown: tuple[str, ...] = ()
    """Keys of ``quantization_config`` whose presence is not known."""


def load_model(
    name: str | None,
    *,
    flags: ServeFlags,
    release: str,
    model_config: str | None = None,
    config_overrides: Mapping[str, Any] | None = None,
    config_like: str | None = None,
    online: bool = False,
    env: Mapping[str, str] | None = None,
    checkpoint: Checkpoint | None = None,
    facts: ReleaseFacts | None = None,
) -> Model:
    """Locate and read the model's config.json the way the given release does.

    ``name`` is the model argument: a directory, a config.json, an id in the local Hugging Face cache, or a
    published id whose config comes with this package. ``model_config`` names another config.json to use,
    ``config_like`` a published id whose config stands in for one that is not at hand.
    ``config_overrides`` (batch input) are merged into the file first: objects key by key, null deletes.
    ``--hf-overrides``, ``--hf-config-path``, ``--revision`` and ``--download-dir`` in ``flags`` count as
    vLLM applies them; without ``name``, ``model_config`` is the model. ``env`` is the server's environment;
    the cache variables of this process fill the gaps.
    ``online`` allows fetching config.json from the Hugging Face Hub. ``checkpoint`` tells what the draft is, where its
    tensors are known. ``facts`` are the build's, where they are not just those of ``release``.

    Raises InputError when there is no usable config.json or it is not that of a DeepSeek-V4 model.
    """
    name = (name or model_config or "").strip()
    environment = {key: os.environ[key] for key in _HUB_VARIABLES if key in os.environ} | dict(env or {})
    found, file = _find_file(name, flags, model_config, config_overrides, config_like, online, environment)
    overrides = _hf_overrides(flags)
    # A value that the caller states for the section settles what was not known about it.
    unknown = () if "quantization_config" in {**(config_overrides or {}), **overrides} else found.unknown
    known = facts or load_facts(nearest_release(release)[0])
    fields = known.section("config_fields")
    wrong: list[tuple[str, ValueIssue]] = []
    if config_overrides or found.origin.kind != "catalogue":
        # The configs that come with this package are in order: a test sees to that.
        file, wrong = _sort_out(file, "config_overrides")
    overrides, wrong_overrides = _sort_out(overrides, "--hf-overrides")
    reading = read_config(
        file,
        found.origin.text or found.source,
        transformers_class=fields.get("config_class") == "transformers",
        flat_overrides=overrides,
        checked=True,
    )
    checked = ConfigSource(fields, file, flags, name, overrides, unknown, found.origin)
    problems = config_problems(reading, checked)
    if wrong or wrong_overrides:
        # A value that was set aside looks like a missing one.
        problems = tuple(item for item in problems if item.code not in _FOLLOWS_FROM_MISSING)
        problems = (*_type_problems((*wrong, *wrong_overrides), checked, reading.family), *problems)
    if found.assumed:
        assumed = Problem("config-assumed", Stage.ENGINE_CONFIG, data={"like": found.assumed}, origin=found.origin)
        problems = (*problems, assumed)
    return Model(
        name=name,
        family=reading.family,
        generation=reading.generation,
        source=found.source,
        raw=reading.raw,
        text=reading.text,
        compress_ratios=reading.compress_ratios,
        draft_kind=_draft_kind(found, reading.text, config_overrides or {}, checkpoint, name),
        known_id=_known_id(found),
        problems=problems,
        origin=found.origin,
    )


def _sort_out(config: Mapping[str, Any], source: str) -> tuple[dict[str, Any], list[tuple[str, ValueIssue]]]:
    """The config without the values of a wrong type, and these with the name of where they stand.

    Raises InputError for a value of the right type that makes no sense.
    """
    wrong = []
    kept = dict(config)
    for issue in value_issues(config):
        if not issue.wrong_type:
            raise InputError(f"{source}: {issue.place}: {issue.text}")
        wrong.append((source, issue))
        kept = without_value(kept, issue.path)
    return kept, wrong


_FOLLOWS_FROM_MISSING = frozenset(
    {"config-field-missing", "config-field-defaulted", "config-architectures-missing", "config-model-type-missing"}
    | {"config-quantization-missing", "config-rope-scaling-missing", "config-native-resave"}
)


_CHECKED_BY_TRANSFORMERS = frozenset({"vocab_size", "architectures", "sliding_window"})
"""Fields that are checked before the engine config is complete in all releases."""


def _type_problems(wrong: tuple[tuple[str, ValueIssue], ...], source: ConfigSource, family: str) -> tuple[Problem, ...]:
    """Values of a wrong type: refused by a strict config class, else by the model that uses them."""
    strict = source.facts.get("config_class") == "transformers" and family == "deepseek_v4"
    exception = "StrictDataclassFieldValidationError" if strict else "TypeError"

    def stage(key: str) -> Stage:
        if strict or key in _CHECKED_BY_TRANSFORMERS:
            return Stage.ENGINE_CONFIG
        # Numbers go to kernels as they are, so text is noticed in the first forward pass.
        return Stage.WARMUP if key in NUMBERS else Stage.MODEL_INIT

    return tuple(
        Problem(
            "config-value-type",
            stage(issue.path[-1]),
            exception,
            f"Validation error for field '{issue.path[-1]}'" if strict else "",
            {"file": where, "field": issue.place, "text": issue.text},
            source.origin,
        )
        for where, issue in wrong
    )


def load_config_file(
    name: str,
    *,
    flags: ServeFlags,
    model_config: str | None = None,
    config_overrides: Mapping[str, Any] | None = None,
    config_like: str | None = None,
    online: bool = False,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The config.json that :func:`load_model` reads, before ``--hf-overrides``; same arguments and errors."""
    environment = {key: os.environ[key] for key in _HUB_VARIABLES if key in os.environ} | dict(env or {})
    return _find_file(name.strip(), flags, model_config, config_overrides, config_like, online, environment)[1]


def _find_file(
    name: str,
    flags: ServeFlags,
    model_config: str | None,
    config_overrides: Mapping[str, Any] | None,
    config_like: str | None,
    online: bool,
    env: Mapping[str, str],
) -> tuple[_Found, dict[str, Any]]:
    """Locate config.json; returns it as found and with ``config_overrides`` merged in."""
    if re.match("https?://", name):
        raise InputError(f"model {name!r} is a web address; expected a directory, a config.json or a repository id")
    if not name:
        raise InputError("the model name is empty; expected a directory, a config.json or a repository id")
    found = _locate(name, flags, model_config, config_like, online, env)
    # A file with a value of a wrong type is unusable input; the same value in an override is a launch to judge.
    if found.origin.kind != "catalogue":
        check_values(found.config, found.origin.text or found.source)
    file = dict(found.config)
    if config_overrides:
        if not isinstance(config_overrides, Mapping):
            raise InputError(f"config_overrides: expected an object, got {type(config_overrides).__name__}")
        file = deep_merge(file, config_overrides)
    return found, file


def _locate(
    name: str,
    flags: ServeFlags,
    model_config: str | None,
    config_like: str | None,
    online: bool,
    env: Mapping[str, str],
) -> _Found:
    """Find the config.json: stated file, --hf-config-path, disk, cache, bundled, Hub, in this order."""
    if model_config:
        return _from_disk(Path(model_config), model_config, required=True) or _missing(model_config, online)
    if config_like:
        entry = find_published(config_like)
        if entry is None:
            raise InputError(f"config_like: {config_like!r} is not a published DeepSeek-V4 checkpoint known here")
        source = f"bundled config of {entry.id}, standing in for {name}"
        own = find_published(name)
        return _Found(bundled_config(entry.id), source, Origin("catalogue", entry.id), own, entry.like or entry.id)
    revision = flags.get("revision")
    where = flags.get("hf_config_path") or name
    found = _search(str(where), revision if isinstance(revision, str) else None, env)
    if found is not None:
        return found
    entry = find_published(str(where))
    if online and (entry is None or entry.trust == "assumed"):
        return _fetch(str(where), revision)
    if entry is not None:
        return _bundled(str(where), entry)
    sibling = guess_sibling(str(where))
    if sibling is not None:
        source = f"bundled config of {sibling.id}, assumed for {where} because of its name"
        return _Found(
            bundled_config(sibling.id),
            source,
            Origin("catalogue", sibling.id),
            assumed=sibling.id,
            unknown=("scale_fmt",) if _REQUANTISED.search(str(where)) else (),
        )
    return _missing(str(where), online)


def _search(where: str, revision: str | None, env: Mapping[str, str]) -> _Found | None:
    """A directory, a file or a cached repository; None when there is none."""
    path = Path(os.path.expanduser(where))
    looks_like_path = where.startswith((".", "/", "~")) or where.endswith(".json") or "\\" in where
    found = _from_disk(path, where, required=False)
    if found is not None:
        return found
    if looks_like_path:
        return None
    snapshot = cached_snapshot(hub_cache(env), where, revision)
    return _from_disk(snapshot, where, required=False) if snapshot is not None else None


def _from_disk(path: Path, name: str, *, required: bool) -> _Found | None:
    """Read a config.json or the one in a directory; None when nothing is there and it was not required."""
    try:
        file = path / CONFIG_NAME if path.is_dir() else path
        present = file.is_file()
    except (OSError, ValueError) as error:
        raise InputError(f"{name!r}: not a usable path ({error})") from None
    if not present:
        if path.is_dir():
            raise InputError(f"{path}: has no {CONFIG_NAME}; expected the directory of a Hugging Face checkpoint")
        if required:
            raise InputError(f"{path}: no such file; expected a config.json or a directory with one")
        return None
    data = read_file(file, MAX_CONFIG_BYTES)
    if data.startswith(codecs.BOM_UTF8):
        raise InputError(f"{file}: starts with a byte order mark, which vLLM refuses; save it as UTF-8 without one")
    config = parse_config(data, str(file))
    legacy = file.parent / "hf_quant_config.json"
    if config.get("quantization_config") is None and legacy.is_file():
        # ModelOpt up to 0.29 wrote the quantisation beside config.json; vLLM reads it from there.
        config["quantization_config"] = parse_config(read_file(legacy, MAX_CONFIG_BYTES), str(legacy))
    return _Found(config, str(file), Origin("file", str(file)), find_published(name))


def _bundled(where: str, entry: PublishedModel) -> _Found:
    """The config that comes with this package, saying how far it can be trusted."""
    source = f"bundled config of {entry.id} ({entry.trust})"
    if where.rstrip("/").lower() != entry.id.lower():
        source += f", used because {where} is not on this machine"
    assumed = entry.like if entry.trust == "assumed" and entry.like else ""
    return _Found(bundled_config(entry.id), source, Origin("catalogue", entry.id), entry, assumed, entry.unknown)


def _missing(where: str, online: bool) -> _Found:
    if online:
        return _fetch(where, None)
    raise InputError(
        f"no config.json for model {where!r}: not a directory, not in the Hugging Face cache and not a "
        "checkpoint known here; give --model-config FILE, or --online to fetch it"
    )


def _fetch(repo: str, revision: object) -> _Found:
    """Fetch config.json (nothing else) from the Hugging Face Hub."""
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise InputError("--online needs the package huggingface-hub (pip install 'dsv4check[hub]')") from None
    try:
        wanted = revision if isinstance(revision, str) else None
        path = hub.hf_hub_download(repo, CONFIG_NAME, revision=wanted)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{repo}: config.json could not be fetched from the Hugging Face Hub ({reason})") from None
    config = parse_config(read_file(Path(path), MAX_CONFIG_BYTES), f"{repo}/{CONFIG_NAME}")
    return _Found(config, f"{repo} on the Hugging Face Hub", Origin("file", str(path)), find_published(repo))


def _hf_overrides(flags: ServeFlags) -> Mapping[str, Any]:
    """``--hf-overrides`` as a mapping.

    vLLM sets each key as an attribute of the config it has loaded: scalars and lists through
    ``PretrainedConfig.update``, objects by replacing the attribute as a whole, except a nested config object,
    which no DeepSeek-V4 config class has (V4.1 flattens its sections).
    """
    # Text that is no object is refused by ModelConfig (resolve/startup_values.py): there is nothing to apply.
    return flags.section("hf_overrides")


def _draft_kind(
    found: _Found,
    text: Mapping[str, Any],
    changed: Mapping[str, Any],
    checkpoint: Checkpoint | None,
    name: str,
) -> str | None:
    """What the ``mtp.*`` tensors hold: by their names, the published facts, or the config's keys."""
    if checkpoint is not None:
        from dsv4check.checkpoint.drafts import draft_kind_of_names

        kind = draft_kind_of_names(checkpoint.tensors)
        if kind is not None:
            return kind
    if changed.get("num_nextn_predict_layers") == 0:
        return "none"
    published = find_published(name) or (None if found.assumed else found.published)
    if published is not None and found.origin.kind == "catalogue":
        return published.draft
    if any(key.startswith("dspark_") for key in text):
        return "dspark"
    if text.get("num_nextn_predict_layers") == 0:
        return "none"
    return published.draft if published is not None else None


def _known_id(found: _Found) -> str | None:
    if found.published is not None:
        return found.published.id
    return found.assumed or None
