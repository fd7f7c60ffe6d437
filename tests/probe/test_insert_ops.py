"""vLLM's own insert ops against packers written for the tests; Triton's kernels of each release run on the CPU."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4check.probe import insert_ops, symbols

TREES = os.environ.get("DSV4CHECK_VLLM_TREES")
PYTHON = os.environ.get("DSV4CHECK_VLLM_PYTHON")
CHILD = Path(__file__).with_name("insert_child.py")
ROOT = Path(__file__).parents[2]

needs_python = pytest.mark.skipif(not PYTHON, reason="needs DSV4CHECK_VLLM_PYTHON, an interpreter with PyTorch")
needs_trees = pytest.mark.skipif(
    not (TREES and PYTHON), reason="needs DSV4CHECK_VLLM_TREES and DSV4CHECK_VLLM_PYTHON (see tests/rehearsal/live.py)"
)

# One for each text of the kernels or way to launch them.
RELEASES = ("0.20.0", "0.21.0", "0.22.0", "0.24.0", "0.28.0", "0.30.0", "0.33.0")


def child(*arguments: str, path: str = "") -> list[dict[str, Any]]:
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": os.environ.get("HOME", "/tmp"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), path])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TRITON_INTERPRET": "1",
    }
    done = subprocess.run(
        [str(PYTHON), str(CHILD), *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return said


@needs_trees
@pytest.mark.parametrize("release", RELEASES)
def test_a_releases_triton_ops_write_the_references_bytes(release: str) -> None:
    tree = Path(str(TREES)) / release
    if not (tree / "vllm").is_dir():
        pytest.skip(f"no tree of {release}")
    first, *said = child("triton", path=str(tree))
    assert {(item["writes"], item["ratio"]) for item in said} == {
        ("packed", 4),
        ("packed", 128),
        ("indexer", 4),
        ("indexer", 128),
    }
    assert sum(item["op"] == "quantize_and_insert_k_cache" for item in said) == 1
    for item in said:
        assert item["ok"], f"{item['op']}: {item['error']}"
        assert item["written"] > 600, item
        assert item["differ"] == 0, f"{item['op']} (ratio {item['ratio']}): {item['differ']} bytes differ"
    assert [item["read_back"] for item in said if "read_back" in item] == [True]
    assert all("torch.ops" in name or "cutedsl" in name for name in first["missing"]), first["missing"]


@needs_python
@pytest.mark.parametrize("form", ["early", "padding", "fork"])
def test_a_compiled_op_gets_what_its_schema_asks_for(form: str) -> None:
    (said,) = child("compiled", form)
    assert said["ok"], said["error"]
    assert said["differ"] == 0
    seen = said["seen"]
    assert seen["q"] == [5, 128, 512]
    assert seen["cache"] == [3, 64 * 584], "a block's bytes in a row, without the padding"
    assert not seen["rotates"]
    assert seen["positions"] == [0] * 5
    rest = {"early": [1e-6, 64], "padding": [128, 1e-6, 64], "fork": [128, 1e-6, 64]}
    # PyTorch's dispatcher drops trailing arguments that have their default's value.
    assert seen["rest"] == pytest.approx(rest[form])


@needs_python
def test_a_compiled_op_that_asks_for_more_is_not_called() -> None:
    (said,) = child("compiled", "unknown")
    assert not said["ok"]
    assert said["error"] == "ValueError: the op asks for flavour (str), which is unknown here"
    assert said["seen"] == {}


def argument(name: str, type_: str, default: Any = None) -> Any:
    return SimpleNamespace(name=name, type=type_, has_default_value=lambda: default is not None, default_value=default)


def test_schemas_of_another_shape_are_refused() -> None:
    tensors = ["q", "kv", "cache", "slots", "positions", "table"]
    schema = [*(argument(name, "Tensor") for name in tensors), argument("eps", "float"), argument("bs", "int")]
    assert insert_ops.schema_arguments(schema, tensors, 64, 256) == [*tensors, 1e-6, 256]
    with pytest.raises(ValueError, match="not 6 tensors"):
        insert_ops.schema_arguments([argument("more", "Tensor"), *schema], tensors, 64, 256)
    with pytest.raises(ValueError, match="takes 3 sizes"):
        insert_ops.schema_arguments([*schema, argument("a", "int"), argument("b", "int")], tensors, 64, 256)


def test_functions_get_what_they_name() -> None:
    def op(k: Any, slot_mapping: Any, use_fnuz: bool = False) -> None: ...

    def newer(k: Any, layout: Any) -> None: ...

    known = {"k": 1, "slot_mapping": 2, "block_size": 3}
    assert insert_ops.by_name(inspect.signature(op), known) == {"k": 1, "slot_mapping": 2}
    with pytest.raises(ValueError, match="asks for 'layout'"):
        insert_ops.by_name(inspect.signature(newer), known)


def test_without_vllm_every_op_is_missing_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if "vllm" not in entry])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    if symbols.vllm_root():
        pytest.skip("vLLM is installed here")
    ops, missing = insert_ops.find_ops(interpret=True)
    assert ops == []
    assert set(missing.values()) == {"it needs a GPU", "no vllm on the path"}


def test_interpreter_off_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ImportError, match="TRITON_INTERPRET=1"):
        symbols.interpreted("vllm.models.deepseek_v4.common.ops.cache_utils")
