"""Rehearsals with real releases: what vLLM itself does, on a simulated GPU.

They run where DSV4CHECK_VLLM_TREES names a folder with unpacked releases (``0.29.0/vllm``, ...) and
DSV4CHECK_VLLM_PYTHON an interpreter with CPU PyTorch and vLLM's pure-Python dependencies. Releases that are not
in the folder are passed over. Every release costs its imports once (10 - 40 s).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsv4check.api import check_request, read_request
from dsv4check.engine.rule import load_rules
from dsv4check.rehearsal.compare import Agreement, compare
from dsv4check.rehearsal.environment import find_environment
from dsv4check.rehearsal.launch import build_launch, for_environment
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import Rehearsal, RehearsedStage, Status

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
PYTHON = os.environ.get("DSV4CHECK_VLLM_PYTHON")

pytestmark = pytest.mark.skipif(
    not (TREES and PYTHON), reason="needs DSV4CHECK_VLLM_TREES and DSV4CHECK_VLLM_PYTHON (see the module's docstring)"
)

FLASH = "deepseek-ai/DeepSeek-V4-Flash"
PACKED = "kv must have shape (num_blocks, page_block_size, h_kv, bytes_per_token)"
Rehearse = Callable[..., Rehearsal]


@pytest.fixture(scope="module")
def rehearse() -> Iterator[Rehearse]:
    """Rehearses flags on a release, and checks that the rules agree. One session is open at a time."""
    sessions: dict[str, RehearsalSession] = {}

    def run(release: str, flags: str, gpu: str = "H200", agree: bool = True) -> Rehearsal:
        tree = Path(str(TREES)) / release
        if not (tree / "vllm").is_dir():
            pytest.skip(f"{tree} is not there")
        if release not in sessions:
            for open_session in sessions.values():
                open_session.close()
            sessions.clear()
            sessions[release] = RehearsalSession(find_environment(PYTHON, str(tree)))
        request = read_request(f"vllm serve {FLASH} -tp 8 {flags}", gpu=gpu, gpus=8)
        request = for_environment(request, sessions[release].environment.vllm)
        report = check_request(request, load_rules(), fixes=False)
        draft = report.resolution.draft.config.get("model") if report.resolution.draft is not None else None
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


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
def test_swa_and_main_caches_are_views_of_584_bytes(rehearse: Rehearse, release: str) -> None:
    rehearsal = rehearse(release, "--kv-cache-dtype fp8")
    assert {result.status for result in rehearsal.stages} == {Status.OK}
    assert widths(rehearsal) == {"swa": {584}, "main": {584}}
    assert rehearsal.result(RehearsedStage.FLASHMLA).detail == {"applies": True, "layers": 84, "state_bytes": 584}
    assert rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["block_size"] == 256


@pytest.mark.parametrize(
    ("release", "exception", "said"),
    [
        ("0.24.0", "AssertionError", "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16"),
        ("0.33.0", "ValueError", "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got bfloat16. Please set"),
    ],
)
def test_bfloat16_on_sm90(rehearse: Rehearse, release: str, exception: str, said: str) -> None:
    stage, raised, message = failure(rehearse(release, "--kv-cache-dtype bfloat16"))
    assert (stage, raised) == ("model-init", exception)
    assert message.startswith(said)


def test_a_backend_of_another_model_is_refused(rehearse: Rehearse) -> None:
    stage, raised, message = failure(
        rehearse("0.24.0", "--kv-cache-dtype fp8 --attention-backend FLASHINFER_MLA_SPARSE")
    )
    assert (stage, raised) == ("model-init", "ValueError")
    assert message.startswith("FLASHINFER_MLA_SPARSE is not a DeepSeek V4 attention backend")


@pytest.mark.parametrize(
    ("release", "exception", "said"),
    [
        ("0.24.0", "RuntimeError", "is invalid for input of size"),
        ("0.29.0", "ValueError", "cannot be split into 2 kernel blocks of 256 tokens"),
        ("0.33.0", "ValueError", "packed 512-token KV cache blocks cannot be split into"),
    ],
)
def test_block_size_512(rehearse: Rehearse, release: str, exception: str, said: str) -> None:
    stage, raised, message = failure(rehearse(release, "--kv-cache-dtype fp8 --block-size 512", agree=False))
    assert (stage, raised) == ("kv-cache-init", exception)
    assert said in message


def test_auto_stops_0_29(rehearse: Rehearse) -> None:
    stage, raised, message = failure(rehearse("0.29.0", ""))
    assert (stage, raised) == ("model-init", "AssertionError")
    assert message == "DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got auto"


def test_auto_passes_0_30(rehearse: Rehearse) -> None:
    rehearsal = rehearse("0.30.0", "")
    assert {result.status for result in rehearsal.stages} == {Status.OK}
    assert rehearsal.result(RehearsedStage.KV_CACHE_INIT).detail["cache_dtype"] == "fp8_ds_mla"


def test_without_the_hybrid_manager_0_25_views_512_bytes(rehearse: Rehearse) -> None:
    flags = "--kv-cache-dtype fp8 --max-model-len 131072"
    assert rehearse("0.25.1", flags).failure is None
    rehearsal = rehearse("0.25.1", f"{flags} --disable-hybrid-kv-cache-manager")
    assert failure(rehearsal) == ("flashmla-contract", "RuntimeError", PACKED)
    assert widths(rehearsal)["swa"] == {512}
    assert rehearsal.failure is not None
    assert rehearsal.failure.detail["example"]["shape"][-1] == 512
