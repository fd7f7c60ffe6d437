"""The packed layout against vLLM's own kernels, bit for bit, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.probe.vllm_cache_ops import cut_out

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")

from dsv4check.probe import packed  # noqa: E402
from tests.probe.test_packed import edge_keys, random_keys, raw  # noqa: E402

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
HOMES = ("models/deepseek_v4/common/ops/cache_utils.py", "v1/attention/ops/deepseek_v4_ops/cache_utils.py")
"""Where releases keep the kernels: 0.22 on, and before."""

pytestmark = pytest.mark.skipif(TREES is None, reason="DSV4CHECK_VLLM_TREES names no folder of unpacked releases")


def different_kernels() -> list[Any]:
    """One release for every different text of the kernels."""
    seen: dict[str, Any] = {}
    for tree in sorted(Path(TREES or "/nowhere").glob("*.*")):
        for path in (tree / "vllm" / home for home in HOMES):
            if path.is_file() and (text := cut_out(path)) not in seen:
                seen[text] = pytest.param(path, id=tree.name)
    return list(seen.values())


def case(keys: Any, states: int, *, blocks: int, extra: int = 0, fill: int = 0) -> dict[str, Any]:
    """Keys at the first slots of a cache, shuffled; the last two are skipped."""
    slots = torch.randperm(len(keys), generator=torch.Generator().manual_seed(states))
    slots[-2:] = -1
    stride = packed.padded_page_bytes(states) + extra
    return {"keys": keys, "slots": slots, "states": states, "blocks": blocks, "block_stride": stride, "fill": fill}


def cases() -> list[dict[str, Any]]:
    return [
        case(edge_keys(), 64, blocks=1),
        case(random_keys(7, 2, spread=12.0), 2, blocks=4, fill=0xA5),
        case(random_keys(6, 3), 256, blocks=1),
        case(random_keys(5, 4), 2, blocks=3, extra=576 * 31),
        case(random_keys(6, 5), 4, blocks=2, extra=8, fill=0x11),
    ]


@pytest.mark.parametrize("path", different_kernels())
def test_bytes_and_values_are_vllm_s(path: Path, tmp_path: Path) -> None:
    asked = cases()
    torch.save(asked, tmp_path / "cases.pt")
    script = Path(__file__).with_name("vllm_cache_ops.py")
    subprocess.run(
        [sys.executable, str(script), str(path), str(tmp_path / "cases.pt"), str(tmp_path / "answers.pt")],
        check=True,
        timeout=300,
    )
    answers = torch.load(tmp_path / "answers.pt")
    assert len(answers) == len(asked)
    for one, answer in zip(asked, answers, strict=True):
        cache = packed.new_cache(one["blocks"], one["states"], one["block_stride"], one["fill"])
        packed.write_states(cache, one["slots"], one["keys"])
        assert raw(cache) == answer["bytes"].tolist()
        back = packed.read_states(cache, torch.arange(len(one["keys"])))
        written = one["slots"][one["slots"] >= 0]
        assert torch.equal(back[written], answer["gathered"][written])
        if one["fill"] == 0:
            assert torch.equal(back, answer["gathered"]), "a state nobody wrote is read as zeros"
