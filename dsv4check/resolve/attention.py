"""Which attention class the target's layers get, and how many query heads it pads to.

DeepSeek-V4 layers never go through vLLM's generic backend selector. A selector of their own maps the
option and the compute capability to a class, so a backend's declared dtypes and capabilities are not
enforced (``models/deepseek_v4/nvidia/model.py:_select_dsv4_attn_cls``; before 0.23 there is one class).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Attention, Parallelism


@dataclass(frozen=True, slots=True)
class BackendRequest:
    """The attention backend as asked for."""

    name: str | None
    """Upper-cased name; None when unset or ``auto``."""
    spelled: str | None
    """``flag`` for --attention-backend, ``config`` for --attention-config."""
    origin: Origin | None


def requested_backend(deployment: Deployment) -> BackendRequest:
    """The backend asked for by ``--attention-backend`` or ``--attention-config.backend``.

    Both upper-case the name; ``auto`` counts as unset (``config/attention.py:validate_backend_before``).
    """
    flags = deployment.flags
    for dest, spelled, value in (
        ("attention_backend", "flag", flags.values.get("attention_backend")),
        ("attention_config", "config", flags.section("attention_config").get("backend")),
    ):
        if isinstance(value, str) and value:
            use = flags.use(dest)
            name = None if value.lower() == "auto" else value.upper()
            return BackendRequest(name, spelled, use.origin if use else None)
    return BackendRequest(None, None, None)


def resolve_attention(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism
) -> tuple[Attention, tuple[Problem, ...]]:
    """Attention class, layout and padded heads for this launch.

    With an unknown GPU the class (or at least the layout) is still given when every compute capability leads
    to the same one.
    """
    section = facts.section("attention")
    request = requested_backend(deployment)
    problems = list(_name_problems(deployment, section, request))
    if any(problem.exception for problem in problems):
        return _unresolved(request, parallel), tuple(problems)
    name = _class_name(section, request.name, deployment)
    if name is None:
        # The GPU decides between classes; what they have in common is known all the same.
        layouts = {section["classes"][item]["layout"] for item in _class_table(section, request.name).values()}
        layout = layouts.pop() if len(layouts) == 1 else None
        indexer = indexer_dtype(deployment, facts)
        return Attention(request.name, None, None, layout, None, parallel.local_heads, indexer), tuple(problems)
    cls: Mapping[str, Any] = section["classes"][name]
    padded = _padded_heads(cls, parallel.local_heads)
    if padded is None and parallel.local_heads:
        problems.append(
            Problem(
                "too-many-query-heads",
                Stage.MODEL_INIT,
                "ValueError",
                str(cls.get("too_many", "")).replace("{heads}", str(parallel.local_heads)),
                {"heads": parallel.local_heads, "largest": cls["padded_q_heads"][-1], "class": name},
            )
        )
    attention = Attention(
        requested=request.name,
        backend=cls["backend"],
        cls=name,
        layout=cls["layout"],
        padded_q_heads=padded,
        local_q_heads=parallel.local_heads,
        indexer_dtype=indexer_dtype(deployment, facts),
    )
    return attention, tuple(problems)


def indexer_dtype(deployment: Deployment, facts: ReleaseFacts) -> str:
    """Stored form of the indexer keys this release uses: ``mxfp4`` when its own switch asks for it, else ``fp8``.

    Up to 0.27 only ``use_fp4_indexer_cache`` counts; ``indexer_kv_dtype`` exists from 0.24 but DeepSeek-V4
    reads it from 0.28 on (``v1/attention/backends/mla/indexer.py:dsa_indexer_uses_fp4``).
    """
    section = deployment.flags.section("attention_config")
    indexer = facts.section("kv_cache").get("indexer", {})
    for key in (indexer.get("option"), indexer.get("alias")):
        value = section.get(key) if key else None
        if key == "use_fp4_indexer_cache" and value is True:
            return "mxfp4"
        if key == "indexer_kv_dtype" and isinstance(value, str) and value != "auto":
            return value
    return "fp8"


def backend_name_problems(deployment: Deployment, facts: ReleaseFacts) -> list[Problem]:
    """Names of backends that no model may have; the config checks them whatever the model is."""
    found = _name_problems(deployment, facts.section("attention"), requested_backend(deployment))
    return [problem for problem in found if problem.stage is Stage.ENGINE_CONFIG]


def _unresolved(request: BackendRequest, parallel: Parallelism) -> Attention:
    return Attention(request.name, None, None, None, None, parallel.local_heads)


def _name_problems(deployment: Deployment, section: Mapping[str, Any], request: BackendRequest) -> list[Problem]:
    """What is wrong with the backend's name, before any class is chosen."""
    found: list[Problem] = []
    flags = deployment.flags
    if flags.values.get("attention_backend") and flags.section("attention_config").get("backend"):
        found.append(
            Problem(
                "attention-backend-given-twice",
                Stage.ENGINE_CONFIG,
                "ValueError",
                "attention_backend and attention_config.backend are mutually exclusive",
                origin=request.origin,
            )
        )
    if request.name is None:
        return found
    data = {"backend": request.name}
    if request.name not in section["enum"]:
        # Through --attention-config the name is checked while the command line is parsed.
        if request.spelled == "flag":
            found.append(
                Problem(
                    "unknown-attention-backend",
                    Stage.ENGINE_CONFIG,
                    "ValueError",
                    f"Unknown attention backend: '{request.name}'. Valid options are: {', '.join(section['enum'])}",
                    data,
                    request.origin,
                )
            )
    elif request.name in section["refused"]["names"]:
        refused = section["refused"]
        found.append(
            Problem(
                "not-a-v4-backend",
                Stage.MODEL_INIT,
                refused["exception"],
                refused["error"].replace("{backend}", request.name),
                data,
                request.origin,
            )
        )
    elif request.name not in section["named"]:
        found.append(
            Problem(
                "attention-backend-ignored",
                Stage.MODEL_INIT,
                data={**data, "used": _class_name(section, None, deployment) or "the default for the GPU"},
                origin=request.origin,
            )
        )
    return found


def _class_name(section: Mapping[str, Any], backend: str | None, deployment: Deployment) -> str | None:
    """The class chosen, or None when the GPU decides and is not known."""
    table = _class_table(section, backend)
    major = deployment.hardware.sm_major
    if major is not None:
        return table.get(str(major), table["default"])
    return table["default"] if len(table) == 1 else None


def _class_table(section: Mapping[str, Any], backend: str | None) -> Mapping[str, str]:
    """Class by major compute capability, with ``default`` for those not named."""
    table: Mapping[str, str] = section["named"].get(backend) or section["default"]
    return table


def _padded_heads(cls: Mapping[str, Any], heads: int | None) -> int | None:
    """The smallest size the kernels take that holds ``heads``; None when unknown or too many."""
    if heads is None:
        return None
    return next((size for size in cls["padded_q_heads"] if size >= heads), None)
