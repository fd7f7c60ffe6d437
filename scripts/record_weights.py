"""Record what vLLM's own ``load_weights`` does with every name of every published kind of checkpoint.

    python scripts/record_weights.py RELEASE --vllm-path TREE[:FLASHINFER] [--python PY] [--only KIND..] [--check]

The checkpoints are fed to the release on the meta device, as ``dsv4check rehearse`` does. What reached which parameter
goes to ``tests/corpus/weights``; ``tests/checkpoint/test_recorded_weights.py`` compares it with the static mapping.
``--check`` writes nothing and exits with 1 when a record would change.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from dsv4check.checkpoint.published import few_experts, published_tensors
from dsv4check.checkpoint.synthetic import make_checkpoint
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.inputs.checkpoint import bundled_config
from dsv4check.rehearsal.environment import find_environment
from dsv4check.rehearsal.parent import RehearsalSession
from dsv4check.rehearsal.protocol import Launch, Rehearsal, RehearsedStage, SimulatedDevice, Status
from scripts.weight_records import key_of, rows_of, table_of

CORPUS: Final = Path(__file__).resolve().parent.parent / "tests" / "corpus" / "weights"
TABLES: Final = CORPUS / "tables"
_TIMEOUT: Final = 300.0
"""Seconds; all experts of a checkpoint take about 25."""


@dataclass(frozen=True)
class Kind:
    """One checkpoint and the way it is served."""

    model: str
    method: str
    tokens: int = 1
    since: str = "0.20.0"
    words: tuple[str, ...] = ("--tensor-parallel-size", "8")
    sm: str = "9.0"
    all_experts: bool = False
    """Feed every expert, not three of a layer."""
    drop: tuple[str, ...] = ()
    """Starts of names that are left out."""
    extra: tuple[str, ...] = ()
    """Names that no release has a parameter for."""
    prefix: str = ""
    """In front of every name."""
    like: str = ""
    """Synthetic kind whose tensors are used where those of the model are not published."""


_FLASH: Final = "deepseek-ai/DeepSeek-V4-Flash"
_PRO: Final = "deepseek-ai/DeepSeek-V4-Pro"
_EP: Final = ("--tensor-parallel-size", "8", "--enable-expert-parallel")
_MEGA: Final = (*_EP, "--moe-backend", "deep_gemm_mega_moe")
_INVENTED: Final = (
    *("layers.0.attn.compressor.weight_scale", "layers.5.attn.rotary.weight", "surprise.weight"),
    *("mtp.0.surprise.weight", "layers.1.self_attn.q_proj.weight", "layers.1.mlp.experts.0.gate_proj.weight"),
)
KINDS: Final[dict[str, Kind]] = {
    "flash": Kind(_FLASH, "mtp", all_experts=True),
    "pro": Kind(_PRO, "mtp"),
    "flash-0731": Kind("deepseek-ai/DeepSeek-V4-Flash-0731", "dspark", 5, "0.25.0", all_experts=True),
    "pro-0813": Kind("deepseek-ai/DeepSeek-V4-Pro-0813", "dspark", 5, "0.25.0"),
    "flash-dspark": Kind("deepseek-ai/DeepSeek-V4-Flash-DSpark", "dspark", 5, "0.25.0"),
    "pro-dspark": Kind("deepseek-ai/DeepSeek-V4-Pro-DSpark", "dspark", 5, "0.25.0"),
    "v4.1-flash": Kind("deepseek-ai/DeepSeek-V4.1-Flash", "dspark", 5, "0.30.0", sm="10.0"),
    "vision-exp": Kind("deepseek-ai/DeepSeek-V4-Flash-Vision-Exp", "dspark", 6, "0.25.0"),
    "flash-base": Kind("deepseek-ai/DeepSeek-V4-Flash-Base", "mtp", words=_EP, like="flash-base"),
    "pro-base": Kind("deepseek-ai/DeepSeek-V4-Pro-Base", "mtp", words=_EP, like="pro-base"),
    "flash-nvfp4": Kind("nvidia/DeepSeek-V4-Flash-NVFP4", "mtp", sm="10.0", like="flash-nvfp4"),
    "pro-nvfp4": Kind("nvidia/DeepSeek-V4-Pro-NVFP4", "mtp", sm="10.0", like="pro-nvfp4"),
    "flash-mega-moe": Kind(_FLASH, "mtp", words=_MEGA, sm="10.0"),
    "flash-0731-mega-moe": Kind("deepseek-ai/DeepSeek-V4-Flash-0731", "dspark", 5, "0.25.0", _MEGA, "10.0"),
    "flash-0731-by-mtp": Kind("deepseek-ai/DeepSeek-V4-Flash-0731", "mtp"),
    "flash-without-draft": Kind(_FLASH, "mtp", drop=("mtp.",)),
    "flash-0731-one-stage": Kind(
        "deepseek-ai/DeepSeek-V4-Flash-0731", "dspark", 5, "0.25.0", drop=("mtp.1.", "mtp.2.attn.")
    ),
    "flash-half-a-layer": Kind(_FLASH, "mtp", drop=("layers.7.attn.", "layers.9.ffn.experts.", "norm.", "mtp.0.ffn.")),
    "flash-prefixed": Kind(_FLASH, "mtp", prefix="model."),
    "flash-invented": Kind(_FLASH, "mtp", extra=_INVENTED),
}


def tensors_of(kind: Kind) -> dict[str, Tensor]:
    """Name -> tensor of a kind's checkpoint, in the order in which vLLM would read it."""
    published = published_tensors(kind.model)
    tensors = make_checkpoint(kind.like)[0] if published is None else dict(published.tensors)
    if not kind.all_experts:
        tensors = few_experts(tensors)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(kind.drop or ("\0",))}
    renamed = {kind.prefix + name: tensor for name, tensor in kept.items()}
    return renamed | {name: Tensor("BF16", (1,)) for name in kind.extra}


def launch_of(kind: Kind) -> Launch:
    """The launch that loads a kind."""
    records = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors_of(kind).items())
    draft = json.dumps({"method": kind.method, "num_speculative_tokens": kind.tokens})
    return Launch(
        entrypoint="serve",
        argv=("{model:0}", "--kv-cache-dtype", "fp8", *kind.words, "--speculative-config", draft),
        device=SimulatedDevice(kind.sm),
        models=((kind.model, bundled_config(kind.model)),),
        weights=(records,),
        trace_weights=True,
        stage_timeout=_TIMEOUT,
    )


def record_of(answer: Rehearsal) -> tuple[dict[str, Any], dict[str, str]]:
    """(record, tables by name) of an answer: per part the table and the refusals.

    ``whole`` is False where vLLM stopped at a tensor that could not be told: then what was not loaded means nothing.
    """
    result = answer.result(RehearsedStage.WEIGHT_LOAD)
    stopped = answer.unavailable if result.status is Status.UNAVAILABLE else answer.failure
    if result.status not in (Status.OK, Status.FAILED):
        said = f"{stopped.stage.value}: {stopped.exception}: {stopped.message}" if stopped else "not reached"
        return {"not_loaded": " ".join(said.split())[:300]}, {}
    record: dict[str, Any] = {}
    tables: dict[str, str] = {}
    for part in ("target", "draft"):
        detail = result.detail.get(part)
        if detail is None:
            continue
        table = table_of(rows_of(detail["trace"]), detail["trace"]["parameters"])
        tables[key_of(table)] = table
        refused = [[one["tensor"], one["exception"], _first_sentence(one["message"])] for one in detail["refused"]]
        record[part] = {"table": key_of(table), "refused": refused}
        if not detail["trace"]["whole"]:
            record[part]["whole"] = False
    if result.status is Status.FAILED:
        record["stops_with"] = [result.exception, _first_sentence(result.message)]
    return record, tables


def _first_sentence(message: str) -> str:
    """Without the list of all parameters, whose order changes from run to run."""
    return " ".join(message.partition(" The available parameters")[0].split())[:300]


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("release")
    options.add_argument("--vllm-path")
    options.add_argument("--python")
    options.add_argument("--only", nargs="+", choices=list(KINDS))
    options.add_argument("--check", action="store_true")
    arguments = options.parse_args()
    environment = find_environment(python=arguments.python, vllm_path=arguments.vllm_path)
    if environment.vllm != arguments.release:
        print(f"the vLLM found is {environment.vllm}, not {arguments.release}", file=sys.stderr)
        return 2
    path = CORPUS / f"{arguments.release}.json"
    records: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    changed = False
    with RehearsalSession(environment) as session:
        for name in arguments.only or KINDS:
            kind = KINDS[name]
            if Version(arguments.release) < Version(kind.since):
                continue
            began = time.monotonic()
            record, tables = _record(session.rehearse, kind)
            same = records.get(name) == record
            changed = changed or not same
            print(f"{name}: {_words(record)}, {time.monotonic() - began:.1f} s{'' if same else ', new'}", flush=True)
            records[name] = record
            if not arguments.check:
                TABLES.mkdir(parents=True, exist_ok=True)
                for key, table in tables.items():
                    (TABLES / f"{key}.tsv").write_text(table, encoding="utf-8")
    if not arguments.check:
        path.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if arguments.check and changed else 0


def _record(rehearse: Callable[[Launch], Rehearsal], kind: Kind) -> tuple[dict[str, Any], dict[str, str]]:
    return record_of(rehearse(launch_of(kind)))


def _words(record: Mapping[str, Any]) -> str:
    if "not_loaded" in record:
        return str(record["not_loaded"])
    return ", ".join(f"{part} {record[part]['table']}" for part in ("target", "draft") if part in record)


if __name__ == "__main__":
    sys.exit(main())
