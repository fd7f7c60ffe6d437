"""Which KV connectors exist, what they need, and what V4 pays when the hybrid KV-cache manager is off.

The checks follow ``VllmConfig.__post_init__`` (engine-config) and the connectors' constructors, which run
when the KV cache is planned and allocated (kv-cache-init).
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import ReleaseFacts
from dsv4check.resolution import Parallelism
from dsv4check.resolve.flag_values import where
from dsv4check.resolve.kv_connector import (
    Connector,
    children,
    connector_names,
    extra_config,
    find_connector,
    hybrid_manager,
    supports_hybrid,
)
from dsv4check.resolve.offload_tiers import size_problem
from dsv4check.resolve.offloading import offload_problems
from dsv4check.resolve.scheduler_limits import max_model_len

_VALIDATION = "ValidationError"
_MULTI = "MultiConnector"


def check_connectors(
    deployment: Deployment, facts: ReleaseFacts, parallel: Parallelism
) -> tuple[tuple[Problem, ...], Mapping[str, Any]]:
    """Problems of the connector, and values for rule conditions.

    Values: ``kv_connector`` (name or None), ``kv_connectors`` (names, children of a MultiConnector
    included), ``hybrid_manager_disabled`` (bool) and ``hybrid_manager_why`` (``flag``, ``connector`` or "").
    """
    section = facts.section("connectors")
    connector = find_connector(deployment, section)
    disabled, why = hybrid_manager(deployment, section, connector)
    names = [] if connector is None else connector_names(connector)
    values = {
        "kv_connector": connector.name if connector else None,
        "kv_connectors": names,
        "hybrid_manager_disabled": disabled,
        "hybrid_manager_why": why,
    }
    problems = _nameless(deployment, section) if connector is None else _names(deployment, section, connector)
    if problems:
        # An unknown name hides everything else: vLLM stops on it before it looks at the rest.
        return tuple(problems), values
    problems += _hisparse(deployment, section, connector, parallel, disabled)
    if connector is not None:
        problems += _config_stage(deployment, section, connector, parallel, disabled)
        problems += _start_stage(deployment, section, connector, parallel, disabled)
        created = all(problem.code != "connector-needs-plain-cache" for problem in problems)
        listed = [(connector.name, connector.extra)]
        listed += [(name, extra_config(child)) for name, child in children(connector)]
        for name, extra in listed if created else ():
            if name == "OffloadingConnector":
                problems += offload_problems(deployment, section, extra, disabled, connector.origin)
            elif name == "SimpleCPUOffloadConnector":
                words = size_problem(extra, connector.origin)
                problems += [] if words is None else [words]
    if disabled:
        problem = _full_context(deployment, facts, parallel, connector, why)
        if problem is not None:
            problems.append(problem)
    return tuple(problems), values


def _nameless(deployment: Deployment, section: Mapping[str, Any]) -> list[Problem]:
    """``--kv-transfer-config`` without ``kv_connector``.

    The hybrid manager's default asks the connector's class from 0.22 on; before that, and where a flag settles the
    manager, the config is carried along without effect (``is_kv_transfer_instance``).
    """
    flags = deployment.flags
    if not isinstance(flags.values.get("kv_transfer_config"), Mapping):
        return []
    origin = where(deployment, "kv_transfer_config")
    settled = isinstance(flags.values.get("disable_hybrid_kv_cache_manager"), bool)
    if section["any_disables_hybrid"] or settled:
        return [Problem("connector-not-named", Stage.RUNTIME, "", "", {}, origin)]
    error = "Connector name is not set in KVTransferConfig"
    return [Problem("connector-name-missing", Stage.ENGINE_CONFIG, _VALIDATION, error, {}, origin)]


def _names(deployment: Deployment, section: Mapping[str, Any], connector: Connector) -> list[Problem]:
    """Names the release has not registered, and children without a role."""
    problems: list[Problem] = []
    checked = section["multi_checks_children"] == "config"
    stage = Stage.ENGINE_CONFIG if checked else Stage.KV_CACHE_INIT
    # The config looks the class up for full CUDA graphs, and for the hybrid manager unless that is switched off.
    early = _full_graphs(deployment) or (
        checked and deployment.flags.values.get("disable_hybrid_kv_cache_manager") is not True
    )
    first = Stage.ENGINE_CONFIG if early else Stage.KV_CACHE_INIT
    listed = [] if connector.external else [(connector.name, connector.config, first)]
    listed += [(name, child, stage) for name, child in children(connector)]
    for name, config, at in listed:
        if config.get("kv_connector_module_path") or name in section["names"]:
            continue
        close = get_close_matches(name, section["names"], 1, 0.5)
        data = {"name": name, "closest": close[0] if close else "", "known": ", ".join(section["names"])}
        error = f"Unsupported connector type: {name}"
        problems.append(Problem("connector-unknown", at, _VALIDATION, error, data, connector.origin))
    for name, child in children(connector):
        if child.get("kv_role") is None:
            error = "Please specify kv_role when kv_connector is set"
            data = {"name": name}
            problems.append(Problem("connector-child-role", stage, _VALIDATION, error, data, connector.origin))
    return problems


def _full_graphs(deployment: Deployment) -> bool:
    flags = deployment.flags
    mode = str(flags.section("compilation_config").get("cudagraph_mode") or "FULL_AND_PIECEWISE").upper()
    return mode.startswith("FULL") and flags.get("enforce_eager") is not True and flags.get("optimization_level") != 0


def _config_stage(
    deployment: Deployment,
    section: Mapping[str, Any],
    connector: Connector,
    parallel: Parallelism,
    disabled: bool,
) -> list[Problem]:
    """What VllmConfig refuses together with a connector."""
    flags = deployment.flags
    names = set(connector_names(connector))
    origin = connector.origin
    problems: list[Problem] = []

    def refuse(code: str, error: str, data: Mapping[str, Any]) -> None:
        problems.append(Problem(code, Stage.ENGINE_CONFIG, _VALIDATION, error, data, origin))

    dcp = parallel.decode_context
    transfer = parallel.tensor
    if section["nixl_dcp"] == "transfer":
        transfer = max(parallel.tensor, parallel.prefill_context)
    if section["nixl_dcp"] and "NixlConnector" in names and dcp not in (1, transfer):
        suffix = (
            f"equal to tensor_parallel_size={transfer} when using NixlConnector."
            if section["nixl_dcp"] == "tp"
            else f"equal to the NIXL transfer parallel size={transfer}."
        )
        error = f"Assertion failed, decode_context_parallel_size={dcp} must be 1 or {suffix}"
        refuse("nixl-dcp", error, {"dcp": dcp})
    chunked = flags.get("enable_chunked_prefill") is not False
    hidden_states = connector.name == "ExampleHiddenStatesConnector"
    if section["hidden_states_chunked"] and hidden_states and chunked:
        error = (
            "ExampleHiddenStatesConnector does not support chunked prefill. "
            "Please disable chunked prefill (--no-enable-chunked-prefill)."
        )
        refuse("hidden-states-chunked", error, {})
    if flags.get("enable_sleep_mode") is True and _refuses_sleep(section, connector):
        data = {"name": connector.name}
        refuse("connector-sleep-mode", f"{connector.name} does not support sleep mode.", data)
    problems += _expandable(deployment, section, connector)
    return problems


def _refuses_sleep(section: Mapping[str, Any], connector: Connector) -> bool:
    """``supports_sleep_mode`` (0.33): NIXL pulls only over UCX, its push form and MoRIIO not at all."""
    refusing = section["no_sleep"]
    entries = children(connector) or [(connector.name, connector.config)]
    for name, config in entries:
        backends = extra_config(config).get("backends", ["UCX"])
        pull = name in ("NixlConnector", "NixlPullConnector")
        if name in refusing or (refusing and pull and backends != ["UCX"]):
            return True
    return False


def _expandable(deployment: Deployment, section: Mapping[str, Any], connector: Connector) -> list[Problem]:
    """Expandable segments may move memory that a connector has registered with the network card."""
    exempt_by = section["expandable_segments"]
    settings = deployment.env.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if exempt_by is None or "expandable_segments:True" not in settings:
        return []
    sleep = deployment.flags.get("enable_sleep_mode") is True
    cumem = deployment.flags.get("enable_cumem_allocator") is True
    if sleep or (exempt_by == "cumem" and cumem):
        return []
    option = "enable_cumem_allocator" if exempt_by == "cumem" else "enable_sleep_mode"
    error = (
        f"KV connector {connector.name} is incompatible with "
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless {option} is also enabled."
    )
    data = {"name": connector.name, "option": option, "value": settings}
    origin = Origin("env", "PYTORCH_CUDA_ALLOC_CONF")
    return [Problem("connector-expandable-segments", Stage.ENGINE_CONFIG, _VALIDATION, error, data, origin)]


def _hisparse(
    deployment: Deployment,
    section: Mapping[str, Any],
    connector: Connector | None,
    parallel: Parallelism,
    disabled: bool,
) -> list[Problem]:
    """HiSparse (0.30+): its preconditions, the models it is for, and the size of its host pool."""
    flags = deployment.flags
    entries: list[tuple[str, Mapping[str, Any]]] = []
    if connector is not None:
        entries.append((connector.name, connector.extra))
        entries += [(name, extra_config(child)) for name, child in children(connector)]
    pools = [extra for name, extra in entries if name == "HiSparseConnector"]
    rules = section["hisparse"]
    asked = bool(pools) or flags.section("attention_config").get("hisparse_config") is not None
    if not asked or rules is None:
        return []
    origin = connector.origin if connector is not None and pools else where(deployment, "attention_config")
    mode = str(flags.section("compilation_config").get("cudagraph_mode", "")).upper()
    refusals = (
        (deployment.hardware.vendor not in (None, "nvidia"), "HiSparse currently requires NVIDIA CUDA."),
        (parallel.pipeline > 1, "HiSparse does not support pipeline parallelism."),
        (parallel.decode_context > 1, "HiSparse does not support decode context parallelism."),
        (
            rules["full_graph"] and mode == "FULL",
            "HiSparse does not support cudagraph_mode=FULL; use FULL_AND_PIECEWISE (the default), "
            "which captures FULL graphs for decode batches.",
        ),
        (
            rules["reserve_isl"] and flags.get("scheduler_reserve_full_isl") is False,
            "HiSparse requires --scheduler-reserve-full-isl; remove --no-scheduler-reserve-full-isl.",
        ),
        (
            disabled,
            "HiSparse requires the hybrid KV cache manager; remove --disable-hybrid-kv-cache-manager "
            "or use connectors that support HMA.",
        ),
    )
    for failed, error in refusals:
        if failed:
            data = {"why": error}
            return [Problem("hisparse-refused", Stage.ENGINE_CONFIG, _VALIDATION, error, data, origin)]
    problems = []
    if rules["refuses_v4"]:
        error = "HiSparse does not support DeepSeek V4."
        problems.append(Problem("hisparse-v4", Stage.KV_CACHE_INIT, "ValueError", error, {}, origin))
    size = pools[0].get("host_pool_gib") if pools else None
    if len(pools) > 1:
        error = "Only one HiSparseConnector may be configured"
    elif size is None:
        error = "HiSparseConnector requires host_pool_gib"
    elif isinstance(size, (int, float)) and size <= 0:
        error = "HiSparseConnector host_pool_gib must be positive"
    else:
        return problems
    data = {"why": error}
    return [*problems, Problem("hisparse-pool", Stage.KV_CACHE_INIT, "ValueError", error, data, origin)]


def _start_stage(
    deployment: Deployment,
    section: Mapping[str, Any],
    connector: Connector,
    parallel: Parallelism,
    disabled: bool,
) -> list[Problem]:
    """What the connector itself refuses when it is created beside the KV cache."""
    problems: list[Problem] = []
    listed = connector.extra.get("connectors") if connector.name == _MULTI else True
    if connector.name == _MULTI and not isinstance(listed, list):
        problems.append(
            Problem("multi-connector-empty", Stage.KV_CACHE_INIT, "AssertionError", "", {}, connector.origin)
        )
    elif not disabled and supports_hybrid(section, connector) is False:
        error = (
            f"Connector {connector.name} does not support HMA but HMA is enabled. "
            "Please set `--disable-hybrid-kv-cache-manager`."
        )
        data = {"name": connector.name, "usable": ", ".join(section["hybrid"])}
        problems.append(
            Problem(
                "connector-needs-plain-cache",
                Stage.KV_CACHE_INIT,
                "ValueError",
                error,
                data,
                connector.origin,
            )
        )
    names = set(connector_names(connector))
    nixl = names.intersection(("NixlConnector", "NixlPullConnector", "NixlPushConnector"))
    executor = deployment.flags.values.get("distributed_executor_backend")
    alone = parallel.total == 1 and executor in (None, "uni")
    v4 = deployment.model.family == "deepseek_v4"
    if nixl and alone and v4 and section["nixl_single_process"] and not disabled:
        error = "No common block size for 4"
        problems.append(Problem("nixl-single-process", Stage.KV_CACHE_INIT, "ValueError", error, {}, connector.origin))
    return problems


def _full_context(
    deployment: Deployment,
    facts: ReleaseFacts,
    parallel: Parallelism,
    connector: Connector | None,
    why: str,
) -> Problem | None:
    """With the manager off one request of full length needs every group for every token.

    Lower bound: the compressor states alone. ``_promote_local_kv_cache_specs`` gives each C4 layer (and its
    indexer) a float32 row for every token, 4 x 2048 and 4 x 512 bytes, and each C128 layer 4 x 1024 bytes. KV
    caches are replicated over TP; pipeline stages are taken at their average.
    """
    ratios = deployment.model.compress_ratios
    memory = deployment.hardware.memory_mib
    length = max_model_len(deployment, facts.section("engine_config"))
    fits_itself = deployment.flags.values.get("max_model_len") == -1
    if not ratios or deployment.model.family != "deepseek_v4" or length is None or fits_itself:
        return None
    head = deployment.model.integer("head_dim") or 512
    index = deployment.model.integer("index_head_dim") or 128
    per_token = 0
    for ratio in ratios:
        if ratio == 4:
            per_token += 16 * head + 16 * index
        elif ratio == 128:
            per_token += 8 * head
    per_token //= parallel.pipeline
    need = per_token * length
    data = {
        "why": f"{connector.name}" if why == "connector" and connector else "--disable-hybrid-kv-cache-manager",
        "length": length,
        "per_token_kib": round(per_token / 1024),
        "need_gib": round(need / 2**30, 1),
    }
    origin = connector.origin if why == "connector" and connector else None
    if origin is None:
        origin = where(deployment, "disable_hybrid_kv_cache_manager")
    if memory is not None and need > memory * 2**20:
        data["memory_gib"] = round(memory / 1024, 1)
        code = "hybrid-manager-off-by-connector" if why == "connector" else "hybrid-manager-off-by-flag"
        error = (
            f"To serve at least one request with the models's max seq len ({length}), "
            "KV cache is needed, which is larger than the available KV cache memory"
        )
        return Problem(code, Stage.KV_CACHE_INIT, "ValueError", error, data, origin)
    return Problem("hybrid-manager-off", Stage.RUNTIME, "", "", data, origin)
