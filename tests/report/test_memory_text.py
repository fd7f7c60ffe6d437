"""The memory of a launch as text."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from dsv4check.memory.records import Memory, Span, StageWeights, Weights
from dsv4check.memory_report import build_memory_report
from dsv4check.report.figures import count_range, gib, gib_range, plural, ratio_range
from dsv4check.report.memory_bar import memory_bar, overflow
from dsv4check.report.memory_layout import group_blocks, layout_blocks
from dsv4check.report.memory_text import memory_report_blocks, summary_blocks
from dsv4check.report.model import Report
from dsv4check.report.rich_format import print_blocks
from dsv4check.report.text_format import render, render_blocks
from dsv4check.resolution import KvCache
from tests.report.memory import BUDGET, GIB, GPU, MIB, PLAN, WEIGHTS, memory, report, too_large

PLAIN = "-tp 8 --kv-cache-dtype bfloat16 --attention-backend FLASHINFER_MLA_SPARSE_DSV4"


def text(record: Memory | None, whole: Report | None = None) -> str:
    return render_blocks(memory_report_blocks(build_memory_report(whole or report(record))))


def words(said: str) -> str:
    """The text without its columns and line ends."""
    return " ".join(said.split())


def summary(record: Memory, width: int = 110) -> str:
    return render_blocks(summary_blocks(record), width)


def layout(whole: Report) -> str:
    cache, attention = whole.resolution.kv_cache, whole.resolution.attention
    assert cache is not None
    return render_blocks(layout_blocks(cache, attention.indexer_dtype if attention else None))


def test_the_bar_and_its_legend() -> None:
    lines = text(memory()).splitlines()
    start = lines.index("One GPU: 139.8 GiB")
    assert lines[start + 1 : start + 11] == [
        "  [EEEEEEEEECWDBKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKA.....]",
        "                                                     128.6 GiB for vLLM ^",
        "   E  routed experts                                       17.2 GiB",
        "   C  weights cut by TP                                    0.80 GiB",
        "   W  weights held whole                                    2.1 GiB",
        "   D  draft                                                0.62 GiB",
        "   B  costs counted before the cache                  1.9 - 3.6 GiB",
        "   K  KV cache                                    104.3 - 106.0 GiB",
        "   A  costs after the cache                          0.88 - 2.0 GiB",
        "   .  left free by --gpu-memory-utilization 0.92     9.2 - 10.3 GiB",
    ]


@pytest.mark.parametrize("record", [memory(), too_large(), memory(fits=None), memory(stage=3)])
def test_the_parts_add_up_to_the_gpu(record: Memory) -> None:
    parts = memory_bar(record, compact=False).parts
    # Ranges are drawn at their middle, each rounded down.
    assert sum(part.size for part in parts) == pytest.approx(record.gpu_bytes, abs=len(parts))


def test_the_summary_of_a_launch_that_fits() -> None:
    assert summary(memory()).splitlines() == [
        "Memory of one GPU (139.8 GiB)",
        "  [EEEEEEEEECWDBKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKA.....]",
        "  E experts: 17.2  C cut by TP: 0.80  W whole: 2.1  D draft: 0.62",
        "  B costs before: 1.9 - 3.6  K KV cache: 104.3 - 106.0",
        "  A costs after: 0.88 - 2.0  . left free: 9.2 - 10.3 GiB",
        "  FITS: one request of 1,048,576 tokens needs 4,363 blocks; there are 67,976 - 69,121",
        "  Maximum concurrency 15.58x - 15.84x; longest context 17,214,464 - 17,510,144; see dsv4check memory",
    ]
    assert summary(memory()) in render(report(memory()))


def far_too_large() -> Memory:
    """Weights that are larger than the GPU."""
    weights = StageWeights(150 * GIB, 6 * GIB, 2 * GIB, 7 * GIB)
    shared = Weights("config", 8 * weights.total, 0, (weights,))
    return replace(too_large(), weights=shared, cache_bytes=BUDGET - weights.total - Span(1_900 * MIB, 3_700 * MIB))


RECORDS = {
    "fits": memory(),
    "too large": too_large(),
    "far too large": far_too_large(),
    "between": memory(fits=None),
    "no weights": memory(weights=None, cache_bytes=None, blocks=None, fits=None, concurrency=None),
    "no plan": memory(plan=None, blocks=None, fits=None, concurrency=None, longest_context=None, log_tokens=None),
    "no costs": memory(costs=()),
    "stage out of range": memory(stage=3),
    "nothing": memory(weights=None, costs=(), plan=None, cache_bytes=None, blocks=None, fits=None, utilization=0.0),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_any_record_is_drawn(record: Memory) -> None:
    assert len(summary(record).splitlines()) <= 8
    whole = text(record)
    assert whole.isascii()
    bars = [line for line in whole.splitlines() if line.startswith("  [")]
    assert [len(bar) for bar in bars] == [80 - len("]") + 1]
    assert summary(record).splitlines()[1] == bars[0], "both forms draw the same bar"


def test_what_does_not_fit_says_by_how_much() -> None:
    whole = text(too_large())
    assert whole.startswith("DOES NOT FIT: weights and costs leave nothing for the KV cache (short by 1.2 - 3.0 GiB)\n")
    assert "K KV cache 0.0 GiB" in words(whole)
    assert "none: not even the shortest request fits" in whole
    assert overflow(too_large()) is None, "it exceeds the budget, not the GPU"


def test_more_than_the_gpu() -> None:
    record = far_too_large()
    assert overflow(record) == "over by 27.9 - 30.8 GiB: together more than the 139.8 GiB of the GPU"
    for said in (text(record), summary(record)):
        assert "over by 27.9 - 30.8 GiB" in said
    whole = text(record)
    bar, ends = (line for line in whole.splitlines() if line.startswith("  [") or "end of the GPU" in line)
    # The bar is as long as what is needed; the GPU ends inside it.
    assert ends.index("^") < len(bar) - 10
    assert bar[-2] == "A"
    assert "left free by --gpu-memory-utilization 0.92 0.0 GiB" in words(whole)


def test_costs_that_may_exceed_what_is_left_free() -> None:
    graphs = replace(memory().costs[2], size=Span(1 * GIB, 15 * GIB))
    record = memory(costs=(*memory().costs[:2], graphs))
    said = overflow(record)
    assert said is not None
    assert said.startswith("over by up to 3.8 GiB")
    assert said in summary(record)


def test_a_stated_cache_size_leaves_free_whatever_it_leaves() -> None:
    record = memory(budget_bytes=GPU // 2)
    labels = [part.label for part in memory_bar(record, compact=False).parts]
    assert "left free" in labels


def test_between_the_bounds_the_way_out_is_said() -> None:
    record = memory(fits=None, blocks=Span(4_000, 4_500), longest_context=Span(900_000, 1_048_576))
    whole = text(record)
    assert whole.startswith("MAY NOT FIT: one request of 1,048,576 tokens needs 4,363 blocks; there are 4,000 - 4,500")
    assert "--max-model-len 900000 fits at the high bound of the costs, too" in words(whole)


def test_what_vllm_logs_is_named_and_explained() -> None:
    whole = words(text(memory()))
    assert "Maximum concurrency 15.58x - 15.84x requests of 1,048,576 tokens at once" in whole
    assert "concurrency x max_model_len, not a capacity in tokens" in whole
    assert "131,072 779 1.2 87.26x - 88.73x" in whole


def test_a_release_with_another_formula_is_not_said_to_multiply() -> None:
    whole = words(text(memory(log_tokens=Span(400_000, 410_000))))
    assert "400,000 - 410,000 tokens, in vLLM's log: not a capacity in tokens" in whole


def test_costs_say_when_they_count_why_and_from_where() -> None:
    lines = text(memory()).splitlines()
    start = lines.index("Costs beside weights and KV cache")
    assert lines[start + 1 : start + 5] == [
        "  cost                               GiB  counted  why (source)",
        "  CUDA context and libraries  0.49 - 1.1  before   NCCL over 8 ranks (vllm/a.py:1)",
        "  peak activations             1.4 - 2.5  before   8,192 tokens at once (vllm/b.py:2)",
        "  CUDA graphs                 0.88 - 2.0  after    51 sizes are captured (https://example.org/3)",
    ]


def test_a_long_reason_is_wrapped_beside_its_cost() -> None:
    long = replace(memory().costs[0], why="word " * 60)
    assert max(map(len, text(memory(costs=(long,))).splitlines())) <= 110


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("checkpoint", "Exact      weights, from the headers of the checkpoint's files"),
        ("published", "Exact      weights, from the tensors of the published checkpoint"),
        ("config", "Derived    weights, from the shapes and dtypes that config.json implies"),
    ],
)
def test_what_is_exact_and_what_is_estimated(source: str, said: str) -> None:
    whole = text(memory(weights=Weights(source, 1, 0, (WEIGHTS,))))
    assert said in whole
    assert "Estimated  costs" in whole


def test_a_packed_state_and_its_blocks() -> None:
    said = layout(report(None))
    assert (
        "\n".join(
            (
                "One state of main_c4, main_c128, swa: 584 bytes (fp8_ds_mla)",
                "  +--------------+----------------------+----------------------------+",
                "  | 448 fp8 NoPE | 128 = 64 x bf16 RoPE | 8 = 7 UE8M0 scales + 1 pad |",
                "  +--------------+----------------------+----------------------------+",
                "  0              448                    576                          584",
                "",
                "One block of main_c4, swa: 64 states in 37,440 bytes",
                "  +-------------------------+----------------+--------+",
                "  | 64 x 576: NoPE and RoPE | 64 x 8: scales | 64 pad |",
                "  +-------------------------+----------------+--------+",
                "  0                         36,864           37,376   37,440",
            )
        )
        in said
    )
    assert "One block of main_c128: 2 states in 1,728 bytes" in said
    assert "| 128 x fp8 key | 4 scale |" in said


def test_a_plain_row() -> None:
    said = layout(report(None, gpu="B200", args=PLAIN))
    assert "| 512 x bfloat16, no scales in the row |" in said
    assert "UE8M0 scales + 1 pad" not in said


@pytest.mark.parametrize(("vllm", "said"), [("0.26.0", "uses 68 of them"), ("0.33.0", "| 64 = 128 x fp4 key | 4 = 4")])
def test_keys_of_an_mxfp4_indexer(vllm: str, said: str) -> None:
    flag = "use_fp4_indexer_cache=true" if vllm == "0.26.0" else "indexer_kv_dtype=mxfp4"
    args = f"-tp 8 --kv-cache-dtype fp8 --attention-config.{flag}"
    assert said in layout(report(None, vllm=vllm, gpu="B200", args=args))


def test_the_page_table_says_what_grows_with_the_context() -> None:
    whole = report(None)
    rows = {line.split()[0]: line.split()[1:] for line in layout(whole).splitlines()[2:9]}
    assert rows["main_c4"] == ["21", "256", "4", "64", "584", "37,376", "37,440", "3,071.2"]
    assert rows["swa"][-1] == rows["state_c128"][-1] == "fixed"
    cache = whole.resolution.kv_cache
    assert isinstance(cache, KvCache)
    growing = sum(float(row[-1].replace(",", "")) for row in rows.values() if row[-1] != "fixed")
    assert growing == pytest.approx(cache.bytes_per_token, abs=0.2)


def test_draft_layers_stand_beside_the_targets() -> None:
    args = """-tp 8 --kv-cache-dtype fp8 --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
    assert "swa 43+1 64 " in words(layout(report(None, args=args)))


def test_groups_and_the_share_of_the_stride() -> None:
    said = render_blocks(group_blocks(PLAN))
    shares = [line.split()[-2:] for line in said.splitlines() if line.endswith("%")]
    assert shares == [["61", "%"], ["100", "%"], ["53", "%"], ["40", "%"]]
    assert "One block id takes 1,647,360 bytes on a GPU, the stride" in said
    assert "1 block aside" in said
    stages = render_blocks(group_blocks(replace(PLAN, strides=(1_647_360, 1_500_000), reserved_blocks=0)))
    assert "1,647,360, 1,500,000 bytes on a GPU (by pipeline stage)" in stages
    assert "aside" not in stages


def test_a_launch_that_stops_earlier_says_so_first() -> None:
    said = text(memory(), report(memory(), vllm="0.24.0", args="-tp 8"))
    assert said.startswith("FAIL at model-init (KV001), before its memory is filled\n")
    assert "\nFITS: " in said
    assert "error KV001" in said


def test_an_open_answer_says_how_to_get_it() -> None:
    said = text(None)
    assert said.startswith("NOT EVALUATED: whether this launch fits\n")
    assert "not evaluated (" in said
    assert "To know: " in said
    assert "Pages of the KV cache" in said


@pytest.mark.parametrize("width", [60, 80, 132])
def test_colour_draws_the_same_letters(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width)
    print_blocks(summary_blocks(memory()), console)
    coloured = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[30;44mEEE" in coloured
    plain = Console(file=io.StringIO(), color_system=None, width=width)
    print_blocks(summary_blocks(memory()), plain)
    lines = plain.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line for line in lines if line.startswith("  [")] == [summary(memory(), width).splitlines()[1]]


def test_nothing_is_cut_off_on_80_columns() -> None:
    console = Console(file=io.StringIO(), color_system=None, width=80)
    long = replace(memory().costs[0], why="8,192 tokens at once, " * 12)
    record = memory(costs=(long, *memory().costs))
    print_blocks(memory_report_blocks(build_memory_report(report(record))), console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\u2026" not in said
    assert max(map(len, said.splitlines())) <= 80
    assert "  CUDA context and libraries  0.49 - 1.1  before   8,192 tokens" in said


@pytest.mark.parametrize(
    ("size", "said"), [(0, "0.0"), (1, "<0.01"), (GIB // 2, "0.50"), (GIB, "1.0"), (1234 * GIB, "1,234.0")]
)
def test_gib(size: int, said: str) -> None:
    assert gib(size) == said


def test_ranges() -> None:
    assert gib_range(Span(3 * GIB + 1, 3 * GIB + 2)) == "3.0"
    assert gib_range(Span(-3 * GIB, -1 * GIB)) == "-3.0 to -1.0"
    assert count_range(Span(7, 7)) == "7"
    assert ratio_range((0.5, 1234.0)) == "0.50x - 1,234.00x"
    assert (plural(1, "block"), plural(2_000, "block")) == ("1 block", "2,000 blocks")
