"""Plain rows: written, read back, and attended to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dsv4check.probe import flashinfer, flashinfer_checks, plain  # noqa: E402


def strided(dtype: Any, blocks: int = 3, states: int = 4, gap: int = 512) -> tuple[Any, Any]:
    stride = states * 512 + gap
    raw = torch.zeros(blocks * stride, dtype=dtype)
    return raw, raw.as_strided((blocks, states, 512), (stride, 512, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_rows_come_back_from_where_they_belong(dtype: Any) -> None:
    raw, cache = strided(dtype)
    keys = torch.randn(3, 512).to(dtype).to(torch.bfloat16)
    plain.plain_write(cache, torch.tensor([5, -1, 11]), keys)
    assert torch.equal(plain.plain_read(cache, torch.tensor([11, 5])), keys[[2, 0]])
    # Slot 5: the second row of block 1, whose blocks are 5 rows apart.
    at = 5 * 512 + 512
    assert torch.equal(raw[at : at + 512].to(torch.bfloat16), keys[0])
    assert int((raw.to(torch.float32) != 0).sum()) == int((keys[[0, 2]] != 0).sum())


def test_fp8_rows_saturate() -> None:
    _, cache = strided(torch.float8_e4m3fn)
    plain.plain_write(cache, torch.tensor([0]), torch.full((1, 512), -1e6))
    assert bool((plain.plain_read(cache, torch.tensor([0])) == -448).all())


def test_other_caches_and_slots_are_refused() -> None:
    _, cache = strided(torch.bfloat16)
    with pytest.raises(ValueError, match=r"slots must lie in 0 \.\. 11, got 12 \.\. 12"):
        plain.plain_read(cache, torch.tensor([12]))
    with pytest.raises(ValueError, match=r"a plain cache is \(blocks, states, 512\)"):
        plain.plain_read(torch.zeros(2, 4, 584, dtype=torch.uint8), torch.tensor([0]))


def test_attention_with_a_sink_by_hand() -> None:
    _, cache = strided(torch.bfloat16)
    keys = torch.zeros(2, 512)
    keys[0, 0], keys[1, 1] = 1.0, 2.0
    plain.plain_write(cache, torch.tensor([0, 4]), keys)
    q = torch.zeros(1, 1, 512)
    indices = torch.tensor([[0, -1, 4, 9]], dtype=torch.int32)
    part = [(cache, indices, torch.tensor([3]))]
    # Both scores are 0 and so is the sink: a third each.
    out = plain.sparse_decode(q, part, torch.zeros(1), 1.0, plain.plain_read)
    assert out[0, 0, :2].tolist() == pytest.approx([1 / 3, 2 / 3])
    out = plain.sparse_decode(q, part, torch.tensor([float("-inf")]), 1.0, plain.plain_read)
    assert out[0, 0, :3].tolist() == pytest.approx([1 / 2, 1.0, 0.0])


def step(dtype: Any) -> Any:
    _, view = strided(dtype)
    cache = SimpleNamespace(kind="swa", view=view, slots=torch.arange(12))
    return flashinfer_checks.build(cache, None, {"local_heads": 3}, 1)


ROWS = ["query", "swa_kv_cache", "workspace_buffer", "sparse_indices", "compressed_kv_cache", "sparse_topk_lens"]
ROWS += ["seq_lens", "out", "bmm1_scale", "bmm2_scale", "sinks", "cum_seq_lens_q", "max_q_len"]


def test_a_call_over_plain_rows() -> None:
    inputs = step(torch.float8_e4m3fn)
    made = flashinfer.arguments(inputs, 8, (10, 0), ROWS, workspace=16)
    assert isinstance(made, dict)
    assert sorted(made) == sorted(ROWS)
    assert made["query"].shape == (4, 8, 512)
    assert made["query"].dtype == torch.float8_e4m3fn
    assert bool((made["query"][:, 3:].float() == 0).all())
    assert made["sinks"][3:].tolist() == [float("-inf")] * 5
    assert made["sparse_indices"].shape == (4, 128)
    # Blocks of 4 rows lie 5 rows apart.
    slots = inputs.swa_indices[0, :12].tolist()
    assert made["sparse_indices"][0, :12].tolist() == [slot // 4 * 5 + slot % 4 for slot in slots]
    assert made["sparse_indices"][0, 12:].tolist() == [-1] * 116
    assert made["sparse_topk_lens"].tolist() == [128] * 4
    assert made["seq_lens"].tolist() == [12, 12, 12, 1]
    with_flag = flashinfer.arguments(inputs, 8, (10, 0), [*ROWS, "sparse_indices_are_storage_offsets"], 16)
    assert isinstance(with_flag, dict)
    assert with_flag["sparse_indices_are_storage_offsets"] is True


@pytest.mark.parametrize(
    ("heads", "capability", "said"),
    [
        (8, (9, 0), "needs SM 10.x or 12.x, not 9.0"),
        (2, (10, 0), "3 query heads do not fit into 2"),
        (8, (12, 1), "packed states of 584 bytes, not rows of 512"),
    ],
)
def test_why_a_call_cannot_be_made(heads: int, capability: tuple[int, int], said: str) -> None:
    assert said in str(flashinfer.arguments(step(torch.bfloat16), heads, capability, ROWS, 16))


def test_an_unknown_parameter_is_named() -> None:
    said = flashinfer.arguments(step(torch.bfloat16), 8, (10, 0), ROWS[:-1], 16)
    assert said == f"{flashinfer.NAME} takes no max_q_len: it has no kernels for SM 10.x with this cache"


def test_a_fault_of_the_call_is_a_result() -> None:
    out = torch.zeros(1)

    def refuses(**_: Any) -> None:
        raise ValueError("Expected 64 or 128 query heads,\n got 8")

    def faults(**_: Any) -> None:
        raise RuntimeError("CUDA error")

    refused = flashinfer.run(flashinfer.KernelPlan(refuses, "f", {}, out, "bfloat16"))
    assert (refused.status, refused.message) == ("refused", "ValueError: Expected 64 or 128 query heads, got 8")
    assert flashinfer.run(flashinfer.KernelPlan(faults, "f", {}, out, "bfloat16")).status == "failed"


def test_errors_count_whole_outputs_and_nothing_that_is_no_number() -> None:
    wanted = torch.ones(2, 2, dtype=torch.float64)
    assert flashinfer_checks.relative_error(wanted * 1.01, wanted) == pytest.approx(0.01)
    assert flashinfer_checks.relative_error(torch.tensor([[1.0, float("nan")], [1.0, 1.0]]), wanted) == float("inf")


class Outcome(Exception):  # noqa: N818 - a way out of a check, not an error
    def __init__(self, status: str, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.status = status


class Reporter:
    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []

    def check(self, name: str, work: Any, *, imports: bool = False) -> None:
        try:
            self.said.append((name, "ok", work()[0]))
        except Outcome as outcome:
            self.said.append((name, outcome.status, str(outcome)))

    def skip(self, name: str, why: str) -> None:
        self.said.append((name, "skipped", why))


@pytest.mark.parametrize(("factor", "status"), [(1.0, "ok"), (1.5, "failed")])
def test_the_checks_compare_with_the_reference(monkeypatch: pytest.MonkeyPatch, factor: float, status: str) -> None:
    _, view = strided(torch.bfloat16)
    caches = {
        "swa": SimpleNamespace(kind="swa", view=view, slots=torch.arange(12)),
        "main_c4": SimpleNamespace(kind="main_c4", view=strided(torch.bfloat16)[1], slots=torch.arange(12)),
        "indexer_k": SimpleNamespace(kind="indexer_k", view=None, slots=None),
    }
    asked = []

    def plan(inputs: Any, heads: int, capability: Any) -> Any:
        wanted = flashinfer_checks.expected(inputs, heads)
        asked.append(heads)
        out = torch.zeros(wanted.shape, dtype=torch.bfloat16)
        return flashinfer.KernelPlan(lambda **_: out.copy_(wanted * factor), "stand-in", {}, out, "bfloat16")

    monkeypatch.setattr(flashinfer_checks, "plan", plan)
    reporter = Reporter()
    attention = {"local_heads": 3, "padded_heads": 8, "topk": 128}
    flashinfer.run_checks(caches, attention, reporter, Outcome, 5)
    assert asked == [8, 8]
    assert [(name, found) for name, found, _ in reporter.said] == [
        ("kernel: FlashInfer, swa", status),
        ("kernel: FlashInfer, swa + main_c4", status),
    ]
    assert "by stand-in" in reporter.said[0][2]


def test_without_flashinfer_the_checks_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "flashinfer", None)
    monkeypatch.setitem(__import__("sys").modules, "flashinfer.decode", None)
    caches = {"swa": SimpleNamespace(kind="swa", view=strided(torch.bfloat16)[1], slots=torch.arange(12))}
    reporter = Reporter()
    flashinfer.run_checks(caches, {"local_heads": 3, "padded_heads": 8}, reporter, Outcome, 5)
    assert [item[1] for item in reporter.said] == ["skipped"]
    assert "the kernel was not run: FlashInfer cannot be imported" in reporter.said[0][2]
    reporter = Reporter()
    flashinfer.run_checks({}, {}, reporter, Outcome, 5)
    assert reporter.said[0][1:] == ("skipped", "the kernel was not run: there is no sliding-window cache")
