"""Variables of other programs that change a DeepSeek-V4 launch and are easily forgotten."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from dsv4check.report.masking import MASK, is_secret_variable
from dsv4check.report.secret_text import masked_named

from .records import Observation, State

_ON: Final = re.compile(r"\s*(?:1|true|yes|on|y|t)\s*", re.IGNORECASE)
_CUDA_LIBRARY: Final = re.compile(r"lib(?:cudart|cublas|cublasLt|cudnn|nccl|nvrtc|nvJitLink|cuda)\.so\.\d[\d.]*")
_SWITCHES: Final[Mapping[str, str]] = {
    "NCCL_P2P_DISABLE": "The GPUs of a node copy through host memory instead of NVLink or PCIe: collectives are slow.",
    "NCCL_SHM_DISABLE": "GPUs without peer access talk through network sockets: collectives are very slow.",
    "NCCL_IB_DISABLE": "Nodes talk through sockets instead of InfiniBand or RoCE: collectives between nodes are slow.",
    "CUDA_LAUNCH_BLOCKING": "Every kernel launch waits for the kernel: for debugging, the server becomes very slow.",
    "HF_HUB_OFFLINE": "A model that is named by its repository must lie in the Hugging Face cache already.",
    "TRANSFORMERS_OFFLINE": "A model that is named by its repository must lie in the Hugging Face cache already.",
    "TRITON_INTERPRET": "Triton interprets its kernels on the CPU instead of compiling them: the server is useless.",
}
_MOST_FOLDERS: Final = 64
# Names with TOKENS, or a threshold in tokens, count; they hold no secret.
_LONGEST: Final = 200


def look_at_others(env: Mapping[str, str], package: Path | None, root: Path) -> list[Observation]:
    """Notes on variables that are set; ``package`` is the folder ``vllm`` that was looked at."""
    found = [
        *_visible(env),
        *(
            variable_observation(name, env[name], why)
            for name, why in _SWITCHES.items()
            if _ON.fullmatch(env.get(name, ""))
        ),
        *_allocator(env),
        *_runner(env),
        *_preload(env),
        *_library_path(env, root),
        *_python_path(env, package, root),
        *_toolkit(env, root),
    ]
    return sorted(found, key=lambda observation: observation.id)


def _visible(env: Mapping[str, str]) -> Iterator[Observation]:
    value = env.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return
    words = [word.strip() for word in value.split(",")]
    if not value.strip() or words[0] == "-1":
        why = 'It hides every GPU: vLLM ends with "Failed to infer device type" or "No CUDA GPUs are available".'
        yield variable_observation("CUDA_VISIBLE_DEVICES", value, why, State.ERROR, "Remove it, or name the GPUs.")
        return
    # CUDA stops at the first word that names no GPU.
    used = words.index("-1") if "-1" in words else len(words)
    why = f"The launch sees {used} GPU{'s' if used != 1 else ''}, in this order."
    if len(set(words)) != len(words):
        state, why = State.ERROR, "It names a GPU twice, and CUDA then shows none at all."
        yield variable_observation("CUDA_VISIBLE_DEVICES", value, why, state, "Name each GPU once.")
        return
    yield variable_observation("CUDA_VISIBLE_DEVICES", value, why)


def _allocator(env: Mapping[str, str]) -> Iterator[Observation]:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        value = env.get(name, "")
        if re.search(r"expandable_segments\s*:\s*True", value):
            why = (
                "Memory that is registered for RDMA does not go with it: with a KV connector the launch is refused "
                "from 0.21.0 on; with sleep mode it is refused by 0.20.0."
            )
            yield variable_observation(name, value, why)


def _runner(env: Mapping[str, str]) -> Iterator[Observation]:
    value = env.get("VLLM_USE_V2_MODEL_RUNNER")
    if value is not None and value.strip() in ("0", "1"):
        asked = "second" if value.strip() == "1" else "first"
        why = f"It takes the {asked} model runner whatever the release would choose for this launch."
        yield variable_observation("VLLM_USE_V2_MODEL_RUNNER", value, why)


def _preload(env: Mapping[str, str]) -> Iterator[Observation]:
    value = env.get("LD_PRELOAD", "")
    if value.strip():
        yield variable_observation(
            "LD_PRELOAD", value, "These libraries come first in every process of the launch, workers and compilers too."
        )


def _library_path(env: Mapping[str, str], root: Path) -> Iterator[Observation]:
    """Folders whose CUDA libraries win over those that pip installed: wheels find theirs by RUNPATH, which is later."""
    shadows: list[str] = []
    for folder in env.get("LD_LIBRARY_PATH", "").split(":")[:_MOST_FOLDERS]:
        if not folder.startswith("/"):
            continue
        place = root / folder.lstrip("/")
        try:
            libraries = sorted(item.name for item in place.iterdir() if _CUDA_LIBRARY.fullmatch(item.name))
        except (OSError, ValueError):
            continue
        if libraries:
            shadows.append(f"{folder} ({', '.join(libraries[:4])}{', ...' if len(libraries) > 4 else ''})")
    if shadows:
        why = (
            f"{'; '.join(shadows)} may be loaded before the libraries of the same name that PyTorch brought; of "
            "another version they end in missing symbols, or error 803 for libcuda."
        )
        yield variable_observation("LD_LIBRARY_PATH", env["LD_LIBRARY_PATH"], why)


def _python_path(env: Mapping[str, str], package: Path | None, root: Path) -> Iterator[Observation]:
    for folder in env.get("PYTHONPATH", "").split(":")[:_MOST_FOLDERS]:
        if not folder.startswith("/"):
            continue
        place = root / folder.lstrip("/") / "vllm"
        try:
            there = (place / "__init__.py").is_file()
            same = package is not None and there and place.samefile(package)
        except (OSError, ValueError):
            continue
        if there and not same:
            against = f" instead of {package}, which was looked at" if package is not None else ""
            why = f"Python imports vLLM from {folder}/vllm{against}."
            advice = "Remove the folder from it, or look at that tree with --vllm-path."
            yield variable_observation("PYTHONPATH", env["PYTHONPATH"], why, State.WARNING, advice)
            return


def _toolkit(env: Mapping[str, str], root: Path) -> Iterator[Observation]:
    value = env.get("CUDA_HOME", "")
    if value.startswith("/") and not os.path.exists(root / value.lstrip("/") / "bin/nvcc"):
        why = "There is no bin/nvcc in it: FlashInfer, DeepGEMM or TileLang cannot compile kernels at start."
        yield variable_observation("CUDA_HOME", value, why, State.WARNING, "Point it to a CUDA toolkit, or remove it.")


def variable_observation(
    name: str,
    value: str,
    why: str,
    state: State = State.NOTE,
    advice: str = "",
    source: str = "environment",
    wanted: str = "",
) -> Observation:
    """What is said of one variable, its value fit to be shown."""
    shown = shown_value(name, value)
    return Observation(
        id=f"variable-{name.lower().replace('_', '-')}",
        area="environment",
        state=state,
        what=f"variable {name}",
        found=shown,
        wanted=wanted,
        why=why,
        advice=advice,
        source=source,
        data={"name": name, "value": shown},
    )


def shown_value(name: str, value: str) -> str:
    """A variable's value for a report; that of a secret is masked, and a very long one shortened."""
    if is_secret_variable(name):
        return MASK if value else ""
    text = masked_named(name, value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
