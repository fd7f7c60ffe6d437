"""Rehearsals with real releases: what vLLM itself does, on a simulated GPU.

They run where tests/rehearsal/live.py finds releases; those that are not there are passed over. Every release costs
its imports once (10 - 40 s).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsv4check.api import check_request, read_request
from dsv4check.engine.rule import load_rules
from dsv4check.rehearsal.compare import Agreement, compare
from dsv4check.rehearsal.environment import Environment, find_environment
from dsv4check.rehearsal.launch import build_launch, draft_model, for_environment
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage, Status
from tests.rehearsal.live import live_environment, needs_vllm
from tests.synthetic import synthetic_folder

pytestmark = needs_vllm

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
PACKED = "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"
Rehearse = Callable[..., Rehearsal]


@pytest.fixture(scope="module")
def rehearse() -> Iterator[Rehearse]:
    """Rehearses flags on a release, and checks that the rules agree. One session is open at a time."""
    sessions: dict[str, RehearsalSession] = {}

    def run(
        release: str,
        flags: str,
        gpu: str = "H200",
        agree: bool = True,
        model: str = FLASH,
        overrides: dict[str, Any] | None = None,
    ) -> Rehearsal:
        if release not in sessions:
            environment = live_environment(release)
            if environment is None:
                pytest.skip(f"vLLM {release} is not there")
            for open_session in sessions.values():
                open_session.close()
            sessions.clear()
            sessions[release] = RehearsalSession(environment)
        request = read_request(f"vllm serve {model} -tp 8 {flags}", gpu=gpu, gpus=8, config_overrides=overrides)
        request = for_environment(request, sessions[release].environment.vllm)
        report = check_request(request, load_rules(), fixes=False)
        draft = draft_model(report.resolution)
        rehearsal = sessions[release].rehearse(build_launch(request, report.deployment, draft=draft, stage_timeout=300))
        assert rehearsal.unavailable is None, rehearsal.unavailable
        compared = compare(report, rehearsal, load_rules())
        differ = [item for item in compared.stages if item.agreement is Agreement.DISAGREE]
        assert not agree or not differ, differ
        return rehearsal

    yield run
    for session in sessions.values():
        session.close()


def failure(rehearsal: Rehearsal) -> tuple[str, str, str]:
    """Stage, exception and message of the failure."""
    assert rehearsal.failure is not None, [result.status for result in rehearsal.stages]
    return rehearsal.failure.stage.value, rehearsal.failure.exception, rehearsal.failure.message


def widths(rehearsal: Rehearsal) -> dict[str, set[int]]:
    """Bytes of a state in the views of sliding-window (``swa``) and main caches."""
    found: dict[str, set[int]] = {"swa": set(), "main": set()}
    for tensor in rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["tensors"]:
        if tensor["layer"].endswith("swa_cache"):
            found["swa"].add(tensor["shape"][-1])
        elif "indexer" not in tensor["layer"] and "compressor" not in tensor["layer"]:
            found["main"].add(tensor["shape"][-1])
    return found


def check_packed_views(rehearsal: Rehearsal) -> None:
    """Everything passes, and FlashMLA takes all caches."""
    assert {result.status for result in rehearsal.stages} == {Status.OK}
    assert widths(rehearsal) == {"swa": {584}, "main": {584}}
    assert rehearsal.result(RehearsedStage.FLASHMLA).detail == {"applies": True, "layers": 84, "state_bytes": 584}
    assert rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["block_size"] == 256


def loaded(rehearsal: Rehearsal, part: str) -> tuple[int, int]:
    """Parameters that got a tensor, and all of them."""
    found = rehearsal.result(RehearsedStage.WEIGHT_LOAD).detail[part]
    assert not found["refused"]
    return found["loaded"], found["parameters"]


# One class a release: its imports are paid for once.


class Test020:
    def test_swa_and_main_caches_are_views_of_584_bytes(self, rehearse: Rehearse) -> None:
        check_packed_views(rehearse("0.20.2", "--kv-cache-dtype fp8"))

    def test_bfloat16_on_sm90(self, rehearse: Rehearse) -> None:
        said = "DeepseekV4 only supports fp8 kv-cache format for now, got bfloat16"
        assert failure(rehearse("0.20.2", "--kv-cache-dtype bfloat16")) == ("model-init", "AssertionError", said)

    def test_block_size_512(self, rehearse: Rehearse) -> None:
        assert failure(rehearse("0.20.2", "--kv-cache-dtype fp8 --block-size 512"))[0] == "kv-cache-init"


PRO = "deepseek-ai/DeepSeek-V4-Pro"
TP16 = "-tp 16 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --kv-cache-dtype fp8"


class Test023:
    def test_pro_at_tp_16(self, rehearse: Rehearse) -> None:
        # 3,072 shared-expert columns over 16 ranks are no whole FP8 blocks; 0.24 pads them.
        stage, raised, message = failure(rehearse("0.23.0", TP16, model=PRO))
        assert (stage, raised) == ("model-init", "ValueError")
        assert message.endswith("block_k = 128.")


class Test024:
    def test_pro_at_tp_16(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.24.0", TP16, model=PRO)
        assert rehearsal.failure is None
        assert loaded(rehearsal, "target")[0] == loaded(rehearsal, "target")[1]

    def test_swa_and_main_caches_are_views_of_584_bytes(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.24.0", "--kv-cache-dtype fp8")
        check_packed_views(rehearsal)
        assert rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["runner"] == "v1"

    def test_bfloat16_on_sm90(self, rehearse: Rehearse) -> None:
        said = "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16"
        assert failure(rehearse("0.24.0", "--kv-cache-dtype bfloat16")) == ("model-init", "AssertionError", said)

    def test_a_backend_of_another_model_is_refused(self, rehearse: Rehearse) -> None:
        flags = "--kv-cache-dtype fp8 --attention-backend FLASHINFER_MLA_SPARSE"
        stage, raised, message = failure(rehearse("0.24.0", flags))
        assert (stage, raised) == ("model-init", "ValueError")
        assert message.startswith("FLASHINFER_MLA_SPARSE is not a DeepSeek V4 attention backend")

    def test_block_size_512(self, rehearse: Rehearse) -> None:
        stage, raised, message = failure(rehearse("0.24.0", "--kv-cache-dtype fp8 --block-size 512"))
        assert (stage, raised) == ("kv-cache-init", "RuntimeError")
        assert "is invalid for input of size" in message

    def test_mtp(self, rehearse: Rehearse) -> None:
        flags = '--kv-cache-dtype fp8 --speculative-config \'{"method":"mtp","num_speculative_tokens":1}\''
        rehearsal = rehearse("0.24.0", flags)
        assert rehearsal.failure is None
        assert rehearsal.result(RehearsedStage.DRAFT_INIT).detail["drafter"] == "EagleProposer"
        assert rehearsal.result(RehearsedStage.FLASHMLA).detail["layers"] == 85


class Test025:
    FLAGS = "--kv-cache-dtype fp8 --max-model-len 131072"

    def test_with_the_hybrid_manager(self, rehearse: Rehearse) -> None:
        check_packed_views(rehearse("0.25.1", self.FLAGS))

    def test_without_the_hybrid_manager_views_have_512_bytes(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.25.1", f"{self.FLAGS} --disable-hybrid-kv-cache-manager")
        assert failure(rehearsal) == ("flashmla-contract", "RuntimeError", PACKED)
        assert widths(rehearsal)["swa"] == {512}
        assert rehearsal.failure is not None
        assert rehearsal.failure.detail["example"]["shape"][-1] == 512


@pytest.mark.parametrize("release", ["0.25.0", "0.26.0", "0.27.0", "0.27.1"])
def test_without_the_hybrid_manager_views_have_512_bytes(rehearse: Rehearse, release: str) -> None:
    rehearsal = rehearse(release, "--kv-cache-dtype fp8 --max-model-len 131072 --disable-hybrid-kv-cache-manager")
    assert failure(rehearsal) == ("flashmla-contract", "RuntimeError", PACKED)
    assert 512 in widths(rehearsal)["swa"] | widths(rehearsal)["main"]


class Test028:
    def test_swa_and_main_caches_are_views_of_584_bytes(self, rehearse: Rehearse) -> None:
        check_packed_views(rehearse("0.28.0", "--kv-cache-dtype fp8"))

    def test_bfloat16_on_sm90(self, rehearse: Rehearse) -> None:
        said = "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16"
        assert failure(rehearse("0.28.0", "--kv-cache-dtype bfloat16")) == ("model-init", "AssertionError", said)

    def test_block_size_512(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.28.0", "--kv-cache-dtype fp8 --block-size 512")
        assert rehearsal.failure is None
        assert rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["block_size"] == 512


class Test029:
    def test_auto_stops(self, rehearse: Rehearse) -> None:
        said = "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got auto"
        assert failure(rehearse("0.29.0", "")) == ("model-init", "AssertionError", said)

    def test_block_size_512(self, rehearse: Rehearse) -> None:
        stage, raised, message = failure(rehearse("0.29.0", "--kv-cache-dtype fp8 --block-size 512"))
        assert (stage, raised) == ("kv-cache-init", "ValueError")
        assert "cannot be split into 2 kernel blocks of 256 tokens" in message

    def test_tp_16_over_two_nodes(self, rehearse: Rehearse) -> None:
        flags = "-tp 16 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --kv-cache-dtype fp8"
        rehearsal = rehearse("0.29.0", flags, agree=False)
        check_packed_views(rehearsal)
        assert rehearsal.result(RehearsedStage.ENGINE_CONFIG).detail["tensor"] == 16


class Test030:
    def test_auto_passes(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.30.0", "")
        check_packed_views(rehearsal)
        assert rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["cache_dtype"] == "fp8_ds_mla"


MTP = '--speculative-config \'{"method":"mtp","num_speculative_tokens":1}\''
DSPARK = '--speculative-config \'{"method":"dspark","num_speculative_tokens":5}\''


class Test033:
    def test_every_parameter_of_target_and_draft_is_loaded_by_name(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.33.0", f"--kv-cache-dtype fp8 {MTP}")
        assert loaded(rehearsal, "target") == (1502, 1502)
        assert loaded(rehearsal, "draft") == (39, 39)
        assert rehearsal.result(RehearsedStage.WEIGHT_LOAD).detail["checkpoints"][0]["unused"] == {}

    def test_dspark_over_two_pipeline_stages(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.33.0", f"-tp 4 -pp 2 --kv-cache-dtype fp8 {DSPARK}", model=f"{FLASH}-0731")
        assert rehearsal.failure is None
        assert loaded(rehearsal, "target") == (1506, 1506)
        assert loaded(rehearsal, "draft") == (99, 99)

    @pytest.mark.parametrize("tensor", [1, 4, 8])
    def test_v41_is_loaded_by_name_on_any_number_of_gpus(self, rehearse: Rehearse, tensor: int) -> None:
        words = f"-tp {tensor} --kv-cache-dtype fp8 {DSPARK}"
        rehearsal = rehearse("0.33.0", words, model="deepseek-ai/DeepSeek-V4.1-Flash", gpu="B200")
        assert loaded(rehearsal, "target") == (1521, 1521)
        assert loaded(rehearsal, "draft") == (97, 97)

    @pytest.mark.parametrize(
        ("checkpoint", "flags", "said"),
        [
            (
                {"damage": {"add": "layers.2.attn.rotary.weight"}},
                "",
                ("KeyError", "'layers.2.attn.rotary.weight'"),
            ),
            (
                {"config_changes": {"num_nextn_predict_layers": 2}},
                MTP.replace(":1", ":2"),
                ("ValueError", "MTP speculative decoding layer 5 weights missing from checkpoint."),
            ),
            (
                {"like": "flash-dspark", "stages": 4, "config_changes": {"n_mtp_layers": None}},
                DSPARK,
                ("KeyError", "'model.layers.3."),
            ),
            (
                # FP8 experts have fewer scales than the MXFP4 ones of this checkpoint: torch refuses the copy.
                {"config_changes": {"expert_dtype": "fp8"}},
                "",
                ("RuntimeError", "The size of tensor a"),
            ),
            ({"like": "flash-nvfp4"}, MTP, None),
            ({"like": "flash-fp8"}, MTP, None),
            ({"like": "flash-base"}, MTP, None),
        ],
    )
    def test_checkpoints_on_disk(
        self, rehearse: Rehearse, checkpoint: dict[str, Any], flags: str, said: tuple[str, str] | None
    ) -> None:
        """Static and rehearsed verdict agree (the fixture compares), and vLLM says what the rules quote."""
        folder = synthetic_folder({"like": "flash", "layers": 4, "experts": 8, **checkpoint})
        rehearsal = rehearse("0.33.0", f"-tp 4 --kv-cache-dtype fp8 {flags}", model=str(folder), gpu="B200")
        if said is None:
            assert rehearsal.result(RehearsedStage.WEIGHT_LOAD).status is Status.OK
        else:
            stage, exception, message = failure(rehearsal)
            assert (stage, exception) == ("weight-load", said[0])
            assert message.startswith(said[1])

    def test_mtp_on_a_dspark_checkpoint(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.33.0", f"--kv-cache-dtype fp8 {MTP}", model=f"{FLASH}-0731")
        said = "'model.layers.43.mtp_block.main_proj.weight'"
        assert failure(rehearsal) == ("weight-load", "KeyError", said)
        found = rehearsal.result(RehearsedStage.WEIGHT_LOAD).detail
        assert [one["tensor"] for one in found["draft"]["refused"]] == [
            "mtp.0.main_proj.weight",
            "mtp.0.main_proj.scale",
            "mtp.0.main_norm.weight",
        ]

    def test_swa_and_main_caches_are_views_of_584_bytes(self, rehearse: Rehearse) -> None:
        rehearsal = rehearse("0.33.0", "--kv-cache-dtype fp8")
        check_packed_views(rehearsal)
        assert rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["runner"] == "v2"

    def test_bfloat16_on_sm90(self, rehearse: Rehearse) -> None:
        stage, raised, message = failure(rehearse("0.33.0", "--kv-cache-dtype bfloat16"))
        assert (stage, raised) == ("model-init", "ValueError")
        assert message.startswith("DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16. Please set")

    def test_block_size_512(self, rehearse: Rehearse) -> None:
        stage, raised, message = failure(rehearse("0.33.0", "--kv-cache-dtype fp8 --block-size 512"))
        assert (stage, raised) == ("kv-cache-init", "ValueError")
        assert "packed 512-token KV cache blocks cannot be split into" in message


def changed_tree(folder: Path, package: Path, file: str, old: str, new: str) -> str:
    """The package in another folder, all links but one changed file; no metadata beside it."""
    target = folder / "vllm"
    target.mkdir(parents=True)
    parts = Path(file).parts
    here, there = package, target
    for part in parts:
        for entry in here.iterdir():
            if entry.name != part:
                (there / entry.name).symlink_to(entry)
        here, there = here / part, there / part
        if here.is_dir():
            there.mkdir()
    text = here.read_text(encoding="utf-8")
    assert old in text
    there.write_text(text.replace(old, new), encoding="utf-8")
    return str(folder)


def rehearse_tree(environment: Environment, tree: str) -> Rehearsal:
    others = environment.folders[1:]
    changed = find_environment(environment.python, os.pathsep.join((tree, *others)))
    request = read_request(f"vllm serve {FLASH} -tp 8 --kv-cache-dtype fp8", gpu="H200", gpus=8)
    request = for_environment(request, changed.vllm)
    report = check_request(request, load_rules(), fixes=False)
    with RehearsalSession(changed) as session:
        return session.rehearse(build_launch(request, report.deployment, draft=None, stage_timeout=300))


class TestUnknownCode:
    def test_a_release_that_the_rules_do_not_know(self, tmp_path: Path) -> None:
        environment = live_environment("0.33.0")
        if environment is None:
            pytest.skip("vLLM 0.33.0 is not there")
        tree = changed_tree(tmp_path, Path(environment.package), "_version.py", "0.33.0", "0.99.0")
        rehearsal = rehearse_tree(environment, tree)
        assert rehearsal.vllm == "0.99.0"
        assert {result.status for result in rehearsal.stages} == {Status.OK}

    def test_a_stub_that_no_longer_fits_is_no_verdict(self, tmp_path: Path) -> None:
        environment = live_environment("0.33.0")
        if environment is None:
            pytest.skip("vLLM 0.33.0 is not there")
        tree = changed_tree(tmp_path, Path(environment.package), "distributed/parallel_state.py", "_PP", "_PIPELINE")
        rehearsal = rehearse_tree(environment, tree)
        assert rehearsal.failure is None
        assert rehearsal.unavailable is not None
        assert "has no _PP any more" in rehearsal.unavailable.message
