"""The MoE backend, compared with what vLLM did on a simulated GPU, and each condition on its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsv4check.deployment import Command, Deployment, FlagUse, Hardware, Model, ServeFlags, VllmBuild
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.releases.facts import known_releases, load_facts
from dsv4check.resolution import Moe, Parallelism
from dsv4check.resolve.expert_format import expert_format
from dsv4check.resolve.mega_moe import uses_mega_moe
from dsv4check.resolve.moe_backend import requested_backend, resolve_moe
from tests.launches import run_launch

TRUTH = json.loads((Path(__file__).parent / "data_moe_truth.json").read_text(encoding="utf-8"))
EARLY = (Stage.ARGPARSE, Stage.ENGINE_CONFIG, Stage.MODEL_INIT)

FP8 = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
}
FLASH: dict[str, Any] = {
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "expert_dtype": "fp4",
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "swiglu_limit": 10.0,
    "quantization_config": FP8,
}
PRO = {**FLASH, "hidden_size": 7168, "moe_intermediate_size": 3072, "n_routed_experts": 384}
BASE = {**FLASH, "expert_dtype": "fp8"}
NVFP4 = {**FLASH, "quantization_config": {**FP8, "moe_quant_algo": "NVFP4", "ignore": ["mtp.*"]}}


def launch(
    release: str,
    sm: str | None,
    config: dict[str, Any] = FLASH,
    *,
    tp: int = 8,
    dp: int = 1,
    ep: bool = False,
    env: dict[str, str] | None = None,
    packages: dict[str, str] | None = None,
    vendor: str | None = "nvidia",
    runner: str | None = "v2",
    **flags: Any,
) -> tuple[Moe, tuple[Problem, ...]]:
    values = {"tensor_parallel_size": tp, "data_parallel_size": dp, **flags}
    if ep:
        values["enable_expert_parallel"] = True
    uses = tuple(FlagUse(dest, "", "", None, (i, i + 1), Origin("flag", dest)) for i, dest in enumerate(values))
    capability = None if sm is None else (int(sm.split(".")[0]), int(sm.split(".")[1]))
    deployment = Deployment(
        command=Command(("vllm", "serve"), ()),
        flags=ServeFlags("m", values, uses, defaults={"all2all_backend": "allgather_reducescatter"}),
        env=env or {},
        hardware=Hardware(vendor if sm else None, "test GPU" if sm else None, capability),
        vllm=VllmBuild(release, "release", release, Origin("option")),
        model=Model("m", "deepseek_v4", "original", "", config, config),
        packages=packages or {},
    )
    ranks = tp * dp if ep else 1
    parallel = Parallelism(tp, 1, dp, 1, 1, ep, ranks, tp, tp * dp, None, None)
    return resolve_moe(deployment, load_facts(release), parallel, runner)


def codes(problems: tuple[Problem, ...]) -> list[str]:
    return [problem.code for problem in problems]


def _truth() -> list[Any]:
    return [
        pytest.param(*row, id=f"{row[0]}-{row[1]}-ep{int(row[2])}-tp{row[3]}-{i}")
        for i, row in enumerate(TRUTH["rows"])
    ]


@pytest.mark.parametrize(("release", "name", "ep", "tp", "error", "capabilities"), _truth())
def test_same_outcome_as_vllm(
    release: str, name: str | None, ep: bool, tp: int, error: int | None, capabilities: str
) -> None:
    flags = {} if name is None else {"moe_backend": name}
    for sm in capabilities.split():
        moe, problems = launch(release, sm, tp=tp, ep=ep, **flags)
        early = [problem for problem in problems if problem.exception and problem.stage in EARLY]
        if error is None:
            assert not early, (sm, early)
            late = [problem for problem in problems if problem.exception]
            assert (moe.backend is not None) != bool(late), (sm, late)
        else:
            exception, text = TRUTH["errors"][error]
            assert early, sm
            assert (early[0].exception, early[0].error[: len(text)]) == (exception, text)
            assert early[0].stage is Stage.MODEL_INIT


@pytest.mark.parametrize("release", known_releases())
def test_every_release_has_facts_and_chooses_a_kernel_for_flash_on_hopper_and_blackwell(release: str) -> None:
    for sm in ("9.0", "10.0", "10.3"):
        moe, problems = launch(release, sm)
        assert moe.expert_format == "mxfp4"
        assert moe.backend is not None
        assert problems == ()


@pytest.mark.parametrize(
    ("release", "sm", "backend"),
    [
        ("0.31.0", "9.0", "MARLIN"),
        ("0.32.0", "9.0", "HUMMING"),
        ("0.33.0", "8.9", "MARLIN"),
        ("0.33.0", "10.0", "FLASHINFER_TRTLLM_MXFP4_MXFP8"),
        ("0.23.0", "12.0", "MARLIN"),
        ("0.24.0", "12.0", "DEEPGEMM_MXFP4"),
    ],
)
def test_auto_choice(release: str, sm: str, backend: str) -> None:
    assert launch(release, sm)[0].backend == backend


def test_capability_between_two_recorded_ones_takes_the_lower() -> None:
    assert launch("0.33.0", "8.7")[0].backend == "MARLIN"


def test_nothing_is_chosen_below_turing() -> None:
    moe, problems = launch("0.24.0", "7.0")
    assert moe.backend is None
    assert codes(problems) == ["moe-no-backend"]
    assert problems[0].exception == "NotImplementedError"


@pytest.mark.parametrize(
    ("release", "sm", "works"),
    [
        ("0.23.0", "9.0", False),
        ("0.23.0", "12.0", False),
        ("0.23.0", "10.0", True),
        ("0.24.0", "9.0", True),
        ("0.24.0", "12.0", True),
        ("0.22.0", "9.0", False),
    ],
)
def test_nvfp4_experts_need_sm10x_up_to_0_23(release: str, sm: str, works: bool) -> None:
    moe, problems = launch(release, sm, NVFP4)
    assert moe.expert_format == "nvfp4"
    assert (moe.backend is not None) is works
    assert codes(problems) == ([] if works else ["moe-no-backend"])
    if not works:
        assert problems[0].error == "No NvFp4 MoE backend supports the deployment configuration."


def test_batched_all2all_changes_the_kernel() -> None:
    assert launch("0.33.0", "9.0", tp=1, dp=8, ep=True, all2all_backend="deepep_low_latency")[0].backend == (
        "BATCHED_MARLIN"
    )
    _, problems = launch(
        "0.33.0", "10.0", tp=1, dp=8, ep=True, all2all_backend="deepep_low_latency", moe_backend="deep_gemm"
    )
    assert codes(problems) == ["moe-backend-refused"]
    assert "activation format" in problems[0].error
    # Without expert parallelism over data-parallel ranks there is no exchange, and the option has no effect.
    moe, problems = launch("0.33.0", "10.0", all2all_backend="deepep_low_latency", moe_backend="deep_gemm")
    assert (moe.backend, problems) == ("DEEPGEMM_MXFP4", ())


def test_refusal_names_what_works_here() -> None:
    _, problems = launch("0.33.0", "9.0", moe_backend="deep_gemm")
    working = problems[0].data["working"].split(", ")
    assert {"marlin", "humming", "triton_unfused", "flashinfer_cutlass"} <= set(working)
    assert "deep_gemm" not in working
    for name in working:
        assert launch("0.33.0", "9.0", moe_backend=name)[0].backend is not None


def test_kernel_config_key_counts_unless_the_flag_says_something() -> None:
    _, problems = launch("0.24.0", "9.0", kernel_config={"moe_backend": "deep-gemm"})
    assert codes(problems) == ["moe-backend-refused"]
    assert problems[0].origin == Origin("flag", "kernel_config")
    moe, problems = launch("0.24.0", "9.0", kernel_config={"moe_backend": "deep_gemm"}, moe_backend="marlin")
    assert (moe.requested, moe.backend, problems) == ("marlin", "MARLIN", ())
    moe, _ = launch("0.24.0", "9.0", kernel_config={"moe_backend": "marlin"}, moe_backend="auto")
    assert moe.requested == "marlin"


def test_unknown_name_is_left_to_the_parser() -> None:
    moe, problems = launch("0.23.0", "12.0", moe_backend="b12x")
    assert (moe.requested, moe.backend, problems) == ("b12x", None, ())


def test_without_a_gpu_only_what_holds_on_every_gpu_is_said() -> None:
    moe, problems = launch("0.33.0", None)
    assert (moe.backend, problems) == (None, ())
    assert codes(launch("0.33.0", None, moe_backend="cutlass")[1]) == ["moe-backend-unmapped"]
    assert launch("0.33.0", None, moe_backend="deep_gemm")[1] == ()


def test_other_vendors_are_not_judged() -> None:
    moe, problems = launch("0.33.0", "9.4", moe_backend="cutlass", vendor="amd")
    assert (moe.backend, problems) == (None, ())


def test_environment_that_the_automatic_choice_reads_leaves_it_open() -> None:
    assert launch("0.23.0", "10.0", NVFP4, env={"VLLM_USE_FLASHINFER_MOE_FP4": "0"}) == (
        Moe("auto", "nvfp4", None),
        (),
    )
    assert launch("0.23.0", "10.0", env={"VLLM_USE_FLASHINFER_MOE_FP4": "0"})[0].backend is not None


def test_batch_invariance_leaves_the_choice_open() -> None:
    assert launch("0.33.0", "10.0", env={"VLLM_BATCH_INVARIANT": "1"}) == (Moe("auto", "mxfp4", None), ())
    assert launch("0.33.0", "10.0", env={"VLLM_BATCH_INVARIANT": "0"})[0].backend is not None


def test_lora_limits_the_choice() -> None:
    assert launch("0.33.0", "10.0", enable_lora=True)[0].backend == "MARLIN"
    _, problems = launch("0.33.0", "12.0", enable_lora=True, moe_backend="deep_gemm")
    assert problems[0].error.endswith("since kernel does not support LoRA.")


def test_draft_backend() -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 1, "moe_backend": "cutlass"}
    _, problems = launch("0.33.0", "10.0", speculative_config=spec)
    assert codes(problems) == ["draft-moe-backend-refused"]
    assert problems[0].origin == Origin("flag", "speculative_config")
    assert launch("0.33.0", "10.0", speculative_config={**spec, "method": "dspark"})[1] == ()
    assert launch("0.29.0", "10.0", speculative_config=spec)[1] == ()
    assert codes(launch("0.29.0", "10.0", runner="v1", speculative_config=spec)[1]) == ["draft-moe-backend-refused"]
    assert launch("0.33.0", "10.0", speculative_config={**spec, "moe_backend": "marlin"})[1] == ()


def test_draft_wants_mega_moe() -> None:
    spec = {"method": "mtp", "num_speculative_tokens": 1, "moe_backend": "deep_gemm_mega_moe"}
    _, problems = launch("0.33.0", "10.0", speculative_config=spec)
    assert codes(problems) == ["draft-mega-moe-refused"]
    assert problems[0].stage is Stage.WEIGHT_LOAD
    assert codes(launch("0.24.0", "9.0", runner="v1", speculative_config=spec)[1]) == ["draft-mega-moe-refused"]
    assert launch("0.24.0", "9.0", runner="v2", speculative_config=spec)[1] == ()
    assert launch("0.33.0", "10.0", ep=True, speculative_config=spec)[1] == ()


def test_optional_packages() -> None:
    assert codes(launch("0.33.0", "12.0", moe_backend="b12x")[1]) == ["moe-backend-package"]
    assert launch("0.33.0", "12.0", moe_backend="b12x", packages={"b12x": "1.5.1"})[1] == ()
    _, problems = launch("0.33.0", "12.0", moe_backend="b12x", ep=True)
    assert codes(problems) == ["moe-backend-refused"]


MEGA = {"moe_backend": "deep_gemm_mega_moe"}


def test_mega_moe_works_on_sm10x_with_expert_parallelism() -> None:
    for release in known_releases():
        moe, problems = launch(release, "10.0", tp=1, dp=8, ep=True, **MEGA)
        assert (moe.backend, problems) == ("DEEP_GEMM_MEGA_MOE", ())


def test_mega_moe_without_expert_parallelism() -> None:
    _, problems = launch("0.20.0", "10.0", **MEGA)
    assert codes(problems) == ["moe-backend-unmapped"]  # 0.20.0 falls through to the selection function
    for release in ("0.20.1", "0.33.0"):
        _, problems = launch(release, "10.0", **MEGA)
        assert codes(problems) == ["mega-moe-needs-ep"]


@pytest.mark.parametrize(
    ("release", "stage"),
    [("0.20.0", Stage.WEIGHT_LOAD), ("0.32.0", Stage.WEIGHT_LOAD), ("0.33.0", Stage.MODEL_INIT)],
)
def test_mega_moe_stage_of_the_device_check(release: str, stage: Stage) -> None:
    _, problems = launch(release, "9.0", ep=True, **MEGA)
    assert [(problem.code, problem.stage) for problem in problems] == [("mega-moe-device", stage)]


@pytest.mark.parametrize(
    ("release", "change", "code"),
    [
        ("0.28.0", {"scoring_func": "sigmoid"}, "mega-moe-routing"),
        ("0.31.0", {"norm_topk_prob": False}, "mega-moe-norm"),
        ("0.30.0", {"norm_topk_prob": False}, None),
        ("0.28.0", {"expert_dtype": "fp8"}, "mega-moe-fp8-experts"),
        ("0.28.0", {"n_routed_experts": 250}, "mega-moe-experts-uneven"),
        ("0.28.0", {"moe_intermediate_size": 2080}, "mega-moe-sizes"),
        ("0.33.0", {"quantization_config": NVFP4["quantization_config"]}, "mega-moe-nvfp4-experts"),
    ],
)
def test_mega_moe_conditions(release: str, change: dict[str, Any], code: str | None) -> None:
    _, problems = launch(release, "10.0", {**FLASH, **change}, tp=1, dp=8, ep=True, **MEGA)
    assert codes(problems) == ([] if code is None else [code])


def test_flashinfer_moe_ep_moves_to_the_selection_function_in_0_32() -> None:
    name = {"moe_backend": "flashinfer_moe_ep_mega_deep_gemm"}
    assert codes(launch("0.30.0", "9.0", ep=True, **name)[1]) == ["moe-ep-device"]
    assert codes(launch("0.32.0", "9.0", ep=True, **name)[1]) == ["moe-backend-refused"]
    assert codes(launch("0.30.0", "10.0", **name)[1]) == ["mega-moe-needs-ep"]
    assert codes(launch("0.32.0", "10.0", **name)[1]) == ["moe-backend-refused"]
    assert codes(launch("0.30.0", "10.0", ep=True, enable_eplb=True, **name)[1]) == ["moe-ep-eplb"]
    assert codes(launch("0.30.0", "10.0", NVFP4, ep=True, **name)[1]) == ["moe-ep-nvfp4-experts"]
    assert launch("0.32.0", "10.0", ep=True, **name)[0].backend == "FLASHINFER_MOE_EP_DEEP_GEMM"
    _, problems = launch("0.32.0", "10.0", tp=1, dp=8, ep=True, all2all_backend="deepep_low_latency", **name)
    assert (problems[0].code, problems[0].stage) == ("moe-ep-all2all", Stage.ENGINE_CONFIG)


def test_kernels_with_their_own_exchange_refuse_dual_batch_overlap_and_eplb() -> None:
    name = {"moe_backend": "flashinfer_moe_ep_mega_deep_gemm"}
    _, problems = launch("0.33.0", "10.0", ep=True, enable_eplb=True, enable_dbo=True, **name)
    assert problems[0].error.endswith("since kernel does not support dual batch overlap, EPLB.")
    other = {"moe_backend": "flashinfer_moe_ep_cutedsl"}
    assert launch("0.33.0", "10.0", ep=True, enable_eplb=True, **other)[1] == ()


def test_mori_on_nvidia() -> None:
    _, problems = launch("0.24.0", "9.0", tp=1, dp=8, ep=True, all2all_backend="mori_low_latency")
    assert "all2all-needs-aiter" in codes(problems)
    assert launch("0.24.0", "9.0", ep=True, all2all_backend="mori_low_latency")[1] == ()
    _, problems = launch("0.24.0", "10.0", tp=1, dp=8, ep=True, all2all_backend="mori_low_latency", **MEGA)
    assert problems == ()


def test_shared_expert_is_cut_in_whole_blocks() -> None:
    _, problems = launch("0.23.0", "9.0", PRO, tp=16, ep=True)
    assert problems[0].error == (
        "Weight input_size_per_partition = 192 is not divisible by weight quantization block_k = 128."
    )
    assert (problems[0].data["share"], problems[0].data["fitting"]) == (192, 12)
    assert launch("0.24.0", "9.0", PRO, tp=16, ep=True)[1] == ()
    assert launch("0.23.0", "9.0", PRO, tp=8)[1] == ()
    assert launch("0.23.0", "9.0", FLASH, tp=16)[1] == ()


def test_fp8_experts() -> None:
    moe, problems = launch("0.20.0", "9.0", BASE)
    assert (moe.expert_format, codes(problems)) == ("mxfp4", ["experts-misread"])
    assert problems[0].stage is Stage.WEIGHT_LOAD
    moe, problems = launch("0.20.1", "9.0", BASE)
    assert (moe.expert_format, problems) == ("fp8", ())
    assert moe.backend is not None
    assert launch("0.20.0", "9.0", BASE, load_format="dummy")[1] == ()
    wide = {**PRO, "expert_dtype": "fp8"}
    assert "fp8-expert-block" in codes(launch("0.24.0", "9.0", wide, tp=16)[1])
    assert "fp8-expert-block" not in codes(launch("0.24.0", "9.0", wide, tp=16, ep=True)[1])
    assert "fp8-expert-block" not in codes(launch("0.33.0", "9.0", wide, tp=16)[1])


def test_nvfp4_is_not_read_before_0_22() -> None:
    moe, problems = launch("0.21.0", "10.0", NVFP4)
    assert (moe.expert_format, codes(problems)) == ("mxfp4", ["experts-misread"])


@pytest.mark.parametrize(
    ("release", "value", "code"),
    [
        ("0.33.0", "awq", "quantization-flag-ignored"),
        ("0.33.0", "nonsense", "quantization-flag-ignored"),
        ("0.33.0", "fp8", None),
        ("0.33.0", "humming", "quantization-without-schema"),
        ("0.20.2", "mxfp8", "online-quantization-refused"),
        ("0.24.0", "mxfp8", "quantization-flag-ignored"),
    ],
)
def test_quantization_flag(release: str, value: str, code: str | None) -> None:
    _, problems = launch(release, "10.0", quantization=value)
    assert codes(problems) == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("quant", "release", "expected"),
    [
        ({}, "0.33.0", (None, None, False)),
        ({"quant_method": "auto-round"}, "0.33.0", (None, None, False)),
        ({"quant_method": "FP8"}, "0.33.0", ("mxfp4", "mxfp4", True)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "0.33.0", ("nvfp4", "nvfp4", False)),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
            },
            "0.28.0",
            ("mxfp4", "mxfp4", True),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
            },
            "0.31.0",
            (None, "mxfp4", False),
        ),
        ({"quant_method": "quark", "global_quant_config": {"weight": []}}, "0.28.0", (None, None, False)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_1": {
                        "targets": ["re:.*experts.*"],
                        "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                        "input_activations": {"num_bits": 4, "type": "float", "group_size": 16},
                    }
                },
            },
            "0.33.0",
            ("nvfp4", "nvfp4", False),
        ),
        ({"quant_method": "compressed-tensors", "config_groups": "none"}, "0.33.0", (None, None, False)),
        ({"quant_method": 8}, "0.33.0", (None, None, False)),
        (["fp8"], "0.33.0", (None, None, False)),
    ],
)
def test_expert_format(quant: Any, release: str, expected: tuple[str | None, str | None, bool]) -> None:
    config = {**FLASH, "quantization_config": quant}
    model = Model("m", "deepseek_v4", "original", "", config, config)
    found = expert_format(model, load_facts(release).section("moe"))
    assert (found.name, found.stored, found.native) == expected


def test_v41_keeps_the_expert_dtype_inside_quantization_config() -> None:
    text = {key: value for key, value in FLASH.items() if key not in ("expert_dtype", "quantization_config")}
    raw = {
        "text_config": text,
        "quantization_config": {**FP8, "weight_block_size": [32, 32], "expert_dtype": "fp4"},
    }
    model = Model("m", "deepseek_v41", "nested", "", raw, text)
    assert expert_format(model, load_facts("0.33.0").section("moe")).name == "mxfp4"


def test_unknown_format_is_said() -> None:
    moe, problems = launch("0.33.0", "9.0", {**FLASH, "quantization_config": {"quant_method": "auto-round"}})
    assert (moe.expert_format, moe.backend, codes(problems)) == (None, None, ["expert-format-unknown"])


def test_requested_backend_of_a_wrong_type_counts_as_auto() -> None:
    flags = ServeFlags("m", {"kernel_config": {"moe_backend": 7}})
    deployment = Deployment(
        Command((), ()),
        flags,
        {},
        Hardware(),
        VllmBuild("0.33.0", "release", "0.33.0", Origin("option")),
        Model("m", "deepseek_v4", "original", "", FLASH, FLASH),
    )
    assert requested_backend(deployment).name == "auto"


@pytest.mark.parametrize(
    ("vllm", "gpu", "args", "mega"),
    [
        ("0.33.0", "B200", "-tp 8", False),
        ("0.33.0", "B200", "-tp 8 -ep --moe-backend deep_gemm_mega_moe", True),
        # Refused for the GPU, but this layer is the one that is built.
        ("0.24.0", "H200", "-tp 8 -ep --moe-backend deep_gemm_mega_moe", True),
        ("0.20.0", "B200", "-tp 8 --moe-backend deep_gemm_mega_moe", False),
        ("0.30.0", "B200", "-tp 8 -ep --moe-backend flashinfer_moe_ep_mega_deep_gemm", True),
        ("0.33.0", "B200", "-tp 8 -ep --moe-backend flashinfer_moe_ep_mega_deep_gemm", False),
        ("0.33.0", "MI355X", "-tp 8", False),
    ],
)
def test_which_launches_use_mega_moes_own_layer(vllm: str, gpu: str, args: str, mega: bool) -> None:
    launch = {"vllm": vllm, "gpu": gpu, "gpus": 8, "model": "deepseek-ai/DeepSeek-V4-Flash", "args": args}
    resolution = run_launch(launch).resolution
    assert uses_mega_moe(resolution.moe, resolution.parallel) is mega
