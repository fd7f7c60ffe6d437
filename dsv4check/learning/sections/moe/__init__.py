"""``moe``: which kernel computes the routed experts, and what a release refuses on the way to it.

The table of choices comes from vLLM's own selection functions, called in the release's simulation by
``children/moe_selection.py``; everything else is read from the text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dsv4check.data import rules_dir

from ...release import Release
from .facts import text_facts
from .packages import optional_packages
from .selection import aiter_exchanges, quantization_flags, selection

CHILD: Final = Path(__file__).resolve().parents[2] / "children" / "moe_selection.py"
MODELS: Final = {
    "mxfp4": "deepseek-ai/DeepSeek-V4-Flash",
    "nvfp4": "nvidia/DeepSeek-V4-Flash-NVFP4",
    "fp8": "deepseek-ai/DeepSeek-V4-Flash-Base",
}
"""For each format of the routed experts, a published checkpoint that has it."""


def learn(release: Release) -> dict[str, Any]:
    """The section of one release. Takes about a minute: vLLM is started once."""
    facts = text_facts(release.source)
    read = {"mxfp4": True, "nvfp4": facts["nvfp4_read"], "fp8": facts["expert_dtype_read"]}
    folders = {form: rules_dir() / "models" / name for form, name in MODELS.items() if read[form]}
    answer = release.run(CHILD, *(f"{form}={folder}" for form, folder in folders.items()))
    section = {
        **facts,
        **quantization_flags(answer),
        "aiter_all2all": aiter_exchanges(answer),
        "selection": selection(release.source, answer),
    }
    packages = optional_packages(release.source, answer)
    return {**section, "packages": packages} if packages else section
