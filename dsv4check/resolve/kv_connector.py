"""The KV connector a launch ends up with, and whether it leaves the hybrid KV-cache manager on.

V4 has KV-cache groups of several kinds (main, sliding window, compressor states). The hybrid manager gives
each what it needs; with the manager off every group is kept for the whole context. vLLM switches it off for
the flag and, unless ``--no-disable-hybrid-kv-cache-manager`` is given, for connectors without support: every
connector before 0.22, those without ``SupportsHMA`` since (``VllmConfig.__post_init__``,
``distributed/kv_transfer/kv_connector/factory.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import Deployment
from dsv4check.problems import Origin
from dsv4check.records import dataclass
from dsv4check.resolve.flag_values import where

_MULTI = "MultiConnector"


@dataclass(frozen=True, slots=True)
class Connector:
    """The connector a launch ends up with, also when an offloading flag put it there."""

    name: str
    config: Mapping[str, Any]
    """The ``kv_transfer_config`` entry."""
    extra: Mapping[str, Any]
    """Its ``kv_connector_extra_config``."""
    external: bool
    """Loaded from ``kv_connector_module_path``: nothing is known about it."""
    from_offload_flag: bool
    origin: Origin | None


def find_connector(deployment: Deployment, section: Mapping[str, Any]) -> Connector | None:
    """The connector of ``--kv-transfer-config``, or the one ``--kv-offloading-size`` replaces it with."""
    flags = deployment.flags
    config = flags.section("kv_transfer_config")
    name = config.get("kv_connector")
    extra = extra_config(config)
    offload = flags.values.get("kv_offloading_size")
    if isinstance(offload, (int, float)) and not isinstance(offload, bool):
        if flags.get("kv_offloading_backend", "native") == "lmcache":
            name = section["offload"]["lmcache"]
        else:
            simple = deployment.env.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0") not in ("0", "")
            name = "SimpleCPUOffloadConnector" if simple else "OffloadingConnector"
            extra = {**extra, "cpu_bytes_to_use": offload * 2**30}
        origin = where(deployment, "kv_offloading_size")
        return Connector(str(name), config, extra, False, True, origin)
    if not isinstance(name, str):
        return None
    external = bool(config.get("kv_connector_module_path"))
    return Connector(name, config, extra, external, False, where(deployment, "kv_transfer_config"))


def extra_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The ``kv_connector_extra_config`` of an entry, empty when it has none."""
    extra = config.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def children(connector: Connector) -> list[tuple[str, Mapping[str, Any]]]:
    """Name and config of a MultiConnector's children."""
    listed = connector.extra.get("connectors") if connector.name == _MULTI else None
    if not isinstance(listed, list):
        return []
    return [(str(child.get("kv_connector")), child) for child in listed if isinstance(child, Mapping)]


def connector_names(connector: Connector) -> list[str]:
    """The connector's name and those of its children."""
    return [connector.name, *(name for name, _ in children(connector))]


def hybrid_manager(deployment: Deployment, section: Mapping[str, Any], connector: Connector | None) -> tuple[bool, str]:
    """Whether the hybrid manager is off, and who switched it off."""
    asked = deployment.flags.values.get("disable_hybrid_kv_cache_manager")
    if isinstance(asked, bool):
        return asked, "flag" if asked else ""
    if connector is None:
        return False, ""
    if section["any_disables_hybrid"]:
        # --kv-offloading-size is only turned into a connector after this decision in these releases.
        given = deployment.flags.given("kv_transfer_config")
        return given, "connector" if given else ""
    supported = supports_hybrid(section, connector)
    return supported is False, "connector" if supported is False else ""


def supports_hybrid(section: Mapping[str, Any], connector: Connector) -> bool | None:
    """Does the connector (all children of a MultiConnector) work with the hybrid manager; None: not known."""
    if connector.external:
        return None
    if connector.name == _MULTI and _MULTI in section["hybrid"]:
        listed = children(connector)
        if not listed:
            return False
        answers = [None if child.get("kv_connector_module_path") else _known(section, name) for name, child in listed]
        if False in answers:
            return False
        return None if None in answers else True
    return _known(section, connector.name)


def _known(section: Mapping[str, Any], name: str) -> bool | None:
    """None for connectors whose class comes from another package when that is installed (LMCache)."""
    return None if name in section["external"] else name in section["hybrid"]
