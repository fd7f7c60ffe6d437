from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.sections.connectors import learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned, made_up

V1 = "distributed/kv_transfer/kv_connector/v1"
FACTORY = "distributed/kv_transfer/kv_connector/factory.py"
CONFIG = "config/vllm.py"
NIXL = f"{V1}/nixl/base_worker.py"
OFFLOAD = f"{V1}/offloading/config.py"
FILES = {
    FACTORY: f"""
        class KVConnectorFactory:
            def supports_hma_config(cls, config):
                return config.kv_connector != "MultiConnector"
        KVConnectorFactory.register_connector("Whole", "vllm.{V1.replace("/", ".")}.mine", "Whole")
        KVConnectorFactory.register_connector("Also", "vllm.{V1.replace("/", ".")}.mine", "Alias")
        KVConnectorFactory.register_connector("Plain", "vllm.{V1.replace("/", ".")}.mine", "Plain")
        KVConnectorFactory.register_connector("Outside", "vllm.{V1.replace("/", ".")}.mine", "Outside")
    """,
    f"{V1}/mine.py": f"""
        from vllm.{V1.replace("/", ".")}.base import Base, SupportsHMA
        class Whole(Base, SupportsHMA):
            @classmethod
            def supports_sleep_mode(cls, config):
                return False
        class Plain(Base):
            @classmethod
            def supports_sleep_mode(cls, config):
                return config.get_from_extra_config("x", 1) == 1
        Alias = Whole
        Outside = resolve()
    """,
    f"{V1}/base.py": """
        class Base:
            def supports_sleep_mode(cls, config):
                return True
        class SupportsHMA: ...
    """,
    CONFIG: """
        class VllmConfig:
            def _post_init_kv_transfer_config(self):
                if (size := self.cache_config.kv_offloading_size) is None:
                    return
                backend = self.cache_config.kv_offloading_backend
                if self.kv_transfer_config is None:
                    self.kv_transfer_config = KVTransferConfig()
                if backend == "lmcache":
                    self.kv_transfer_config.kv_connector = "Outside"
            def _verify(self):
                if "expandable_segments:True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
                    return
                if self.model_config is not None and self.model_config.enable_sleep_mode:
                    return
                raise ValueError("no expandable segments")
            def __post_init__(self):
                if self.kv_transfer_config is not None and self.has_connector("NixlConnector"):
                    dcp = self.parallel_config.decode_context_parallel_size
                    assert dcp in (1, self.parallel_config.tensor_parallel_size), "no"
                self._post_init_kv_transfer_config()
                if self.scheduler_config.disable_hybrid_kv_cache_manager is None:
                    if self.kv_transfer_config is not None:
                        if not KVConnectorFactory.supports_hma_config(self.kv_transfer_config):
                            need_disable_hybrid_kv_cache_manager = True
    """,
    NIXL: """
        class BaseWorker:
            def __init__(self, vllm_config):
                self.block_size = vllm_config.cache_config.block_size
            def sync(self):
                select_common_block_size(self.block_size, backends)
    """,
    OFFLOAD: """
        def build(extra):
            _, size = resolve_kv_cache_block_sizes(config)
            return extra.get("blocks_per_chunk")
    """,
    "v1/kv_offload/factory.py": "register('CPUOffloadingSpec')\n",
}


def changed(path: str, old: str, new: str) -> dict[str, str]:
    assert old in FILES[path]
    return FILES | {path: FILES[path].replace(old, new)}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_section_is_what_the_release_says(version: str) -> None:
    assert_learned("connectors", version)


def test_connectors_and_checks_follow_the_text(tmp_path: Path) -> None:
    assert learn(made_up(tmp_path, FILES)) == {
        "names": ["Also", "Outside", "Plain", "Whole"],
        "hybrid": ["Also", "Whole"],
        "external": ["Outside"],
        "no_sleep": ["Also", "Whole"],
        "any_disables_hybrid": False,
        "multi_checks_children": "config",
        "expandable_segments": "sleep",
        "hidden_states_chunked": False,
        "hisparse": None,
        "nixl_dcp": "tp",
        "nixl_single_process": True,
        "offload": {
            "before_hybrid_check": True,
            "chunks": True,
            "hash_check": "resolved",
            "lmcache": "Outside",
            "tiering": False,
            "tiers": {},
        },
    }


@pytest.mark.parametrize(
    ("path", "old", "new", "key", "value"),
    [
        (FACTORY, '"MultiConnector"', '"Other"', "multi_checks_children", "create"),
        (
            CONFIG,
            "model_config.enable_sleep_mode",
            "model_config.enable_cumem_allocator",
            "expandable_segments",
            "cumem",
        ),
        (CONFIG, "expandable_segments:True", "other", "expandable_segments", None),
        (
            CONFIG,
            "(1, self.parallel_config.tensor_parallel_size)",
            "(1, max(self.parallel_config.tensor_parallel_size, self.parallel_config.prefill_context_parallel_size))",
            "nixl_dcp",
            "transfer",
        ),
        (CONFIG, '"NixlConnector"', '"OtherConnector"', "nixl_dcp", None),
        (
            CONFIG,
            "if not KVConnectorFactory.supports_hma_config(self.kv_transfer_config)",
            "if True",
            "any_disables_hybrid",
            True,
        ),
        (NIXL, "= vllm_config", "= lcm(*sizes) if sizes else vllm_config", "nixl_single_process", False),
    ],
)
def test_a_changed_line_changes_its_fact(
    tmp_path: Path, path: str, old: str, new: str, key: str, value: object
) -> None:
    assert learn(made_up(tmp_path, changed(path, old, new)))[key] == value


def test_hisparse_and_hidden_states_are_read_from_their_messages(tmp_path: Path) -> None:
    registered = FILES[FACTORY].replace('"Plain", ', '"HiSparseConnector", ')
    with pytest.raises(LearningError, match="does not say 'HiSparse does not support pipeline"):
        learn(made_up(tmp_path, FILES | {FACTORY: registered}))
    checks = """
            def _hisparse(self):
                if self.parallel_config.pipeline_parallel_size > 1:
                    raise ValueError("HiSparse does not support pipeline parallelism.")
                if self.parallel_config.decode_context_parallel_size > 1:
                    raise ValueError("HiSparse does not support decode context parallelism.")
                if full:
                    raise ValueError("HiSparse does not support cudagraph_mode=FULL; use another")
                raise ValueError("HiSparse requires the hybrid KV cache manager; remove it")
    """
    states = """
                if (
                    self.kv_transfer_config is not None
                    and self.kv_transfer_config.kv_connector == "ExampleHiddenStatesConnector"
                    and self.scheduler_config.enable_chunked_prefill
                ):
                    raise ValueError("no")
    """
    start = "            def _post_init_kv_transfer_config(self):\n"
    config = FILES[CONFIG].rstrip(" ") + checks.lstrip("\n").rstrip(" ")
    config = config.replace(start, start + states.lstrip("\n").rstrip(" "))
    found = learn(made_up(tmp_path, FILES | {FACTORY: registered, CONFIG: config}))
    assert found["hisparse"] == {"full_graph": True, "reserve_isl": False, "refuses_v4": False}
    refusal = 'def groups():\n    raise ValueError("HiSparse does not support DeepSeek V4.")\n'
    layout = {"v1/hisparse/layout.py": refusal}
    (tmp_path / "v4").mkdir()
    found = learn(made_up(tmp_path / "v4", FILES | {FACTORY: registered, CONFIG: config} | layout))
    assert found["hisparse"]["refuses_v4"]
    assert found["hidden_states_chunked"]


@pytest.mark.parametrize(
    ("path", "old", "new", "message"),
    [
        (FACTORY, "register_connector", "add", "registers no connectors"),
        (FACTORY, ', "Plain")', ")", "other words than name, module and class"),
        (f"{V1}/mine.py", "class Plain", "class Other", "has no class Plain"),
        (CONFIG, "manager is None", "manager is not True", "does not settle the hybrid"),
        (CONFIG, '"Outside"', "pick()", "sets no connector for lmcache"),
        (CONFIG, "(1, self", "(2, self", "ties the decode context-parallel size to something unknown"),
        (NIXL, "vllm_config.cache_config.block_size", "size()", "NIXL's worker is size"),
        (OFFLOAD, "resolve_kv_cache_block_sizes", "sizes", "works out the size of a hash block"),
    ],
)
def test_code_that_moved_is_a_clear_error(tmp_path: Path, path: str, old: str, new: str, message: str) -> None:
    with pytest.raises(LearningError, match=message):
        learn(made_up(tmp_path, changed(path, old, new)))
