"""Named values that rule conditions and messages refer to, looked up in a deployment and its resolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin
from dsv4check.records import dataclass
from dsv4check.resolution import Resolution


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that the inputs do not settle."""

    what: str
    """Field name."""
    why: str
    how: str
    """What to give so that it is known."""


_GPU_UNKNOWN: Final = ("no GPU was named and none was found on this machine", "give --gpu, e.g. --gpu H200")
_COUNT_UNKNOWN: Final = ("the number of GPUs was not stated", "give --gpus")

_RECORDS: Final = {
    "kv": "kv_cache",
    "attention": "attention",
    "runner": "runner",
    "draft": "draft",
    "moe": "moe",
    "parallel": "parallel",
}


class Fields:
    """Lookup of named values; see ``docs/rules.md`` for the names."""

    def __init__(self, deployment: Deployment, resolution: Resolution, pins: Mapping[str, str]) -> None:
        """``pins`` are the versions the release pins, used for packages whose version was not stated."""
        self._deployment = deployment
        self._resolution = resolution
        self._pins = pins
        self._cache: dict[str, Any] = {}

    @staticmethod
    def areas() -> frozenset[str]:
        """First parts of the names that a lookup understands."""
        return frozenset(_FINDERS)

    def get(self, name: str) -> Any:
        """The value, None when it is known to be absent, or :class:`Unknown`.

        Raises KeyError for a name no lookup understands: a mistake in a rule.
        """
        if name not in self._cache:
            self._cache[name] = self._find(name)
        return self._cache[name]

    def given(self, name: str) -> bool:
        """True when a flag or variable was given at all (``flag.<dest>[.key]``, ``env.<NAME>``, ``package.<name>``)."""
        area, _, rest = name.partition(".")
        deployment = self._deployment
        if area == "flag":
            dest, *path = rest.split(".")
            if dest not in deployment.flags.values:
                return False
            return not path or _descend(deployment.flags.values[dest], path) is not None
        if area == "env":
            return rest in deployment.env
        if area == "package":
            return rest in deployment.packages
        value = self.get(name)
        return value is not None and not isinstance(value, Unknown)

    def origin(self, name: str) -> Origin | None:
        """Where a flag or variable was said; None for other fields and for what was not given."""
        area, _, rest = name.partition(".")
        if area == "flag":
            use = self._deployment.flags.use(rest.partition(".")[0])
            return use.origin if use else None
        if area == "env" and rest in self._deployment.env:
            return Origin("env", rest)
        return None

    def _find(self, name: str) -> Any:
        area, _, rest = name.partition(".")
        finder = _FINDERS.get(area)
        if finder is None:
            raise KeyError(name)
        return finder(self, name, rest)

    def _flag(self, _name: str, rest: str) -> Any:
        dest, *path = rest.split(".")
        value = self._deployment.flags.get(dest)
        return _descend(value, path) if path else value

    def _env(self, _name: str, rest: str) -> Any:
        return self._deployment.env.get(rest)

    def _code(self, _name: str, rest: str) -> Any:
        """What the build's own tree answers to a fingerprint; None without a tree."""
        own = self._deployment.vllm.own
        return None if own is None else own.code.value(rest)

    def _package(self, _name: str, rest: str) -> Any:
        return self._deployment.packages.get(rest) or self._pins.get(rest)

    def _model(self, _name: str, rest: str) -> Any:
        model = self._deployment.model
        match rest:
            case "family" | "generation" | "source" | "name":
                return getattr(model, rest)
            case "id":
                return model.known_id
            case "draft_kind":
                if model.draft_kind is None:
                    return Unknown(
                        "model.draft_kind",
                        "what the checkpoint's mtp.* tensors hold is not known",
                        "point --model-config at a directory with model.safetensors.index.json",
                    )
                return model.draft_kind
        head, *path = rest.split(".")
        value = model.text.get(head, model.raw.get(head))
        return _descend(value, path) if path else value

    def _gpu(self, name: str, rest: str) -> Any:
        hardware = self._deployment.hardware
        value: Any
        match rest:
            case "vendor" | "name" | "sm" | "sm_major":
                value = getattr(hardware, rest)
                if rest == "name" and value is None and hardware.capability:
                    return f"SM{hardware.capability[0]}{hardware.capability[1]}"
                if value is None and hardware.vendor not in (None, "nvidia") and rest.startswith("sm"):
                    return None
            case "memory_gib":
                value = None if hardware.memory_mib is None else hardware.memory_mib / 1024
            case "unified_memory" | "nodes":
                return getattr(hardware, rest)
            case "per_node":
                value = hardware.gpus_per_node
            case "total":
                value = hardware.total_gpus
            case _:
                raise KeyError(name)
        if value is not None:
            return value
        why, how = _COUNT_UNKNOWN if rest in ("per_node", "total") else _GPU_UNKNOWN
        return Unknown(name, why, how)

    def _record(self, name: str, rest: str) -> Any:
        record = getattr(self._resolution, _RECORDS[name.partition(".")[0]])
        head, *path = rest.split(".")
        if record is None:
            return Unknown(name, "this part of the launch could not be resolved", "fix the findings above first")
        value = getattr(record, head)
        if path:
            return _descend(value, path)
        undecided = self._deployment.hardware.vendor is None and name in _GPU_DEPENDENT
        return Unknown(name, *_GPU_UNKNOWN) if value is None and undecided else value

    def _vllm(self, name: str, rest: str) -> Any:
        build = self._deployment.vllm
        # A number that counts all commits sorts before every release, whatever code the build holds.
        if rest == "release" or (rest == "version" and build.uncounted):
            return self._resolution.release
        if rest in ("version", "kind", "dev_base", "dev_number"):
            return getattr(build, rest)
        raise KeyError(name)

    def _fact(self, _name: str, rest: str) -> Any:
        return self._resolution.facts.get(rest)


_GPU_DEPENDENT: Final = frozenset(
    {
        "kv.resolved_dtype",
        "kv.layout",
        "kv.torch_dtype",
        "attention.backend",
        "attention.cls",
        "attention.layout",
    }
    | {"attention.padded_q_heads", "moe.backend"}
)

_FINDERS: Final = {
    "flag": Fields._flag,
    "env": Fields._env,
    "package": Fields._package,
    "model": Fields._model,
    "gpu": Fields._gpu,
    "vllm": Fields._vllm,
    "code": Fields._code,
    "fact": Fields._fact,
    **dict.fromkeys(_RECORDS, Fields._record),
}


def _descend(value: Any, path: list[str]) -> Any:
    """Follow keys into nested mappings; None when one is missing."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
