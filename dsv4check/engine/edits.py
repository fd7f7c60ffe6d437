"""Candidate edits of a rule, applied to a request.

Each kind returns the edited request together with the words a person reads, or None where the edit does
not apply (there is nothing to drop, no release satisfies the specifier, the value stands in a file).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.engine.conditions import version_in
from dsv4check.inputs.flags import edit as flag_edit
from dsv4check.inputs.gpu import resolve_gpu
from dsv4check.inputs.vllm_version import resolve_vllm
from dsv4check.releases.facts import known_releases
from dsv4check.releases.flag_table import load_flag_table
from dsv4check.report.model import Edit
from dsv4check.request import Request

Applied = tuple[Request, Edit] | None

_NO_VALUE: Final = ("none", "unknown")
"""How a field without a value reads once it is filled in."""

COST: Final[Mapping[str, int]] = {
    "set_key": 1,
    "drop_key": 1,
    "set_flag": 1,
    "drop_flag": 1,
    "rename_flag": 1,
    "set_env": 2,
    "unset_env": 2,
    "set_package": 3,
    "set_vllm": 4,
    "set_gpu": 5,
    "set_model": 6,
}
"""How much a change asks of the user; the smallest sum is offered first."""


def edits_text(edits: Iterable[Mapping[str, Any]]) -> str:
    """A rule's candidate edits for people: ``set flag kv_cache_dtype = fp8; ...``."""
    parts = []
    for edit in edits:
        kind = kind_of(edit)
        target = ", ".join(edit[kind]) if isinstance(edit[kind], list) else edit[kind]
        value = edit.get("value", edit.get("to"))
        parts.append(f"{kind.replace('_', ' ')} {target}" + (f" = {value}" if value is not None else ""))
    return "; ".join(parts)


def kind_of(spec: Mapping[str, Any]) -> str:
    """The edit's kind: its one key that names a kind.

    Raises KeyError for an edit without one: a mistake in a rule.
    """
    return next(key for key in spec if key in COST)


def apply_edit(
    spec: Mapping[str, Any], request: Request, deployment: Deployment, fill: Callable[[str], str]
) -> Applied:
    """Apply one edit; ``fill`` replaces ``{fields}`` in its values, and an edit whose value is not known is none."""
    kind = kind_of(spec)
    target = fill(spec[kind]) if isinstance(spec[kind], str) else spec[kind]
    filled = {key: fill(text) if isinstance(text, str) else text for key, text in spec.items()}
    if any(text != spec[key] and text in _NO_VALUE for key, text in filled.items()):
        return None
    spec = filled
    return _KINDS[kind](request, deployment, target, spec.get("value"), spec)


def _flag_name(deployment: Deployment, dest: str) -> str:
    """The flag of a dest; a flag the release does not have is named as it was typed."""
    if dest.startswith("-"):
        return dest
    spec = load_flag_table(deployment.vllm.release).by_dest.get(dest)
    return spec.flag if spec is not None else f"--{dest.replace('_', '-')}"


def _set_flag(request: Request, deployment: Deployment, dest: str, value: Any, spec: Mapping[str, Any]) -> Applied:
    table = load_flag_table(deployment.vllm.release)
    if dest not in table.by_dest:
        return None
    value = True if spec.get("bare") else _typed(value)
    command = flag_edit.set_flag(request.command, deployment.flags, table, dest, value)
    if command is None:
        return None
    name = _flag_name(deployment, dest)
    text = value if isinstance(value, str) else json.dumps(value)
    shown = flag_edit.bare_spelling(table, dest, value) if isinstance(value, bool) else f"{name} {text}"
    return replace(request, command=command), Edit("set_flag", name, None if value is True else text, shown)


def _drop_flag(request: Request, deployment: Deployment, dest: str, _v: Any, _s: Mapping[str, Any]) -> Applied:
    if dest == "speculative_config":
        return _drop_speculation(request, deployment)
    table = load_flag_table(deployment.vllm.release)
    command = flag_edit.drop_flag(request.command, deployment.flags, table, dest)
    if command is None or command == request.command:
        return None
    name = _flag_name(deployment, dest)
    return replace(request, command=command), Edit("drop_flag", name, None, f"remove {name}")


def _drop_speculation(request: Request, deployment: Deployment) -> Applied:
    """Speculative decoding off: --speculative-config and its --spec-* shortcuts together."""
    table = load_flag_table(deployment.vllm.release)
    command = flag_edit.drop_speculation(request.command, deployment.flags, table)
    if command is None or command == request.command:
        return None
    edit = Edit("drop_flag", "--speculative-config", None, "drop --speculative-config")
    return replace(request, command=command), edit


def _rename_flag(request: Request, deployment: Deployment, old: str, _v: Any, spec: Mapping[str, Any]) -> Applied:
    command = flag_edit.rename_flag(request.command, old, spec["to"])
    if command is None:
        return None
    return replace(request, command=command), Edit("rename_flag", old, spec["to"], f"{spec['to']} instead of {old}")


def _set_key(request: Request, deployment: Deployment, path: str, value: Any, _s: Mapping[str, Any]) -> Applied:
    dest, *keys = path.split(".")
    table = load_flag_table(deployment.vllm.release)
    if dest not in table.by_dest:
        return None
    typed = _typed(value)
    command = flag_edit.set_key(request.command, deployment.flags, table, dest, tuple(keys), typed)
    if command is None:
        return None
    name = _flag_name(deployment, dest)
    shown = json.dumps(typed)
    return replace(request, command=command), Edit(
        "set_key", f"{name}.{'.'.join(keys)}", shown, f'"{keys[-1]}":{shown} in {name}'
    )


def _drop_key(request: Request, deployment: Deployment, path: str, _v: Any, _s: Mapping[str, Any]) -> Applied:
    dest, *keys = path.split(".")
    table = load_flag_table(deployment.vllm.release)
    command = flag_edit.drop_key(request.command, deployment.flags, table, dest, tuple(keys))
    if command is None or command == request.command:
        return None
    name = _flag_name(deployment, dest)
    return replace(request, command=command), Edit(
        "drop_key", f"{name}.{'.'.join(keys)}", None, f"remove {keys[-1]} from {name}"
    )


def _set_env(request: Request, _d: Deployment, name: str, value: Any, _s: Mapping[str, Any]) -> Applied:
    command = flag_edit.set_env(request.command, name, str(value))
    env = {key: text for key, text in request.env.items() if key != name}
    return replace(request, command=command, env=env), Edit("set_env", name, str(value), f"{name}={value}")


def _unset_env(request: Request, deployment: Deployment, name: str, _v: Any, _s: Mapping[str, Any]) -> Applied:
    if name not in deployment.env:
        return None
    command = flag_edit.unset_env(request.command, name)
    env = {key: text for key, text in request.env.items() if key != name}
    return replace(request, command=command, env=env), Edit("unset_env", name, None, f"unset {name}")


def _set_package(request: Request, _d: Deployment, name: str, value: Any, spec: Mapping[str, Any]) -> Applied:
    """``value`` is the version to check with; ``text`` may say it as a specifier."""
    packages = {**request.packages, name: str(value)}
    shown = str(spec.get("text") or f"{name}>={value}")
    return replace(request, packages=packages), Edit("set_package", name, str(value), shown)


def _set_vllm(request: Request, deployment: Deployment, spec: str, _v: Any, _s: Mapping[str, Any]) -> Applied:
    release = nearest_release(spec, deployment.vllm.release)
    if release is None:
        return None
    build = resolve_vllm(release)
    return replace(request, vllm=build), Edit("set_vllm", "", release, f"vLLM {spec} (checked with {release})")


def _set_gpu(request: Request, _d: Deployment, names: Any, _v: Any, _s: Mapping[str, Any]) -> Applied:
    options = [names] if isinstance(names, str) else list(names)
    hardware = request.hardware
    gpu = resolve_gpu(options[0], gpus=hardware.gpus_per_node, nodes=hardware.nodes)
    text = "run on " + (" or ".join(options) if len(options) < 3 else ", ".join(options[:-1]) + f" or {options[-1]}")
    return replace(request, hardware=gpu), Edit("set_gpu", "", options[0], text)


def _set_model(request: Request, deployment: Deployment, name: str, _v: Any, _s: Mapping[str, Any]) -> Applied:
    command = flag_edit.set_model(request.command, deployment.flags, name)
    if command is None:
        return None
    edited = replace(
        request, command=command, model_name=name, model_config=None, config_like=None, config_overrides=None
    )
    return edited, Edit("set_model", "", name, f"serve {name} instead")


def nearest_release(spec: str, current: str) -> str | None:
    """The known release that satisfies ``spec``: the next newer one, else the closest older one."""
    from packaging.version import Version

    here = Version(current)
    fitting = [name for name in known_releases() if version_in(name, spec)]
    newer = [name for name in fitting if Version(name) > here]
    return newer[0] if newer else (fitting[-1] if fitting else None)


def _typed(value: Any) -> Any:
    """A filled-in text that is a JSON number or literal counts as that value."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


_KINDS: Final[Mapping[str, Callable[[Request, Deployment, Any, Any, Mapping[str, Any]], Applied]]] = {
    "set_flag": _set_flag,
    "drop_flag": _drop_flag,
    "rename_flag": _rename_flag,
    "set_key": _set_key,
    "drop_key": _drop_key,
    "set_env": _set_env,
    "unset_env": _unset_env,
    "set_package": _set_package,
    "set_vllm": _set_vllm,
    "set_gpu": _set_gpu,
    "set_model": _set_model,
}
