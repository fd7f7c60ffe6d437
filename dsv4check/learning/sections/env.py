"""``env``: the variables of ``vllm/envs.py`` and the values their readers take, asked of the running code.

Names are kept without ``VLLM_``. ``int`` and ``float``: the reader converts whatever stands there. ``choices``: the
reader is one of ``env_with_choices``. ``early``: a bad value ends the launch before the engine config exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from dsv4check.data import rules_dir

from ..release import Release
from ..source import LearningError

_CHILD: Final = Path(__file__).parents[1] / "children" / "environment.py"
_PREFIX: Final = "VLLM_"
_MODEL: Final = Path("models") / "deepseek-ai" / "DeepSeek-V4-Flash" / "config.json"
_LAUNCH: Final = ("-tp", "8", "--kv-cache-dtype", "fp8")
_UNMISSABLE: Final = frozenset({"VLLM_LOGGING_LEVEL", "VLLM_HOST_IP", "VLLM_CACHE_ROOT"})


def learn(release: Release) -> dict[str, Any]:
    """Known names, readers and early readers of ``envs.environment_variables``."""
    return build(release.run(_CHILD, str(rules_dir() / _MODEL), *_LAUNCH))


def build(answer: dict[str, Any]) -> dict[str, Any]:
    """The section from the answer of ``children/environment.py``."""
    if not answer["flashinfer"]:
        raise LearningError("FlashInfer cannot be imported: vLLM then does not read the variables it reads on a GPU")
    missing = sorted(_UNMISSABLE - set(answer["known"]))
    if missing or not answer["int"] or not answer["choices"]:
        raise LearningError(f"envs.py: environment_variables has no {missing[0] if missing else 'checked values'}")
    return {
        "choices": {name.removeprefix(_PREFIX): item for name, item in answer["choices"].items() if _own(name)},
        **{key: _words(answer[key]) for key in ("early", "float", "int", "known")},
    }


def _own(name: str) -> bool:
    return name.startswith(_PREFIX)


def _words(names: Iterable[str]) -> str:
    return " ".join(sorted(name.removeprefix(_PREFIX) for name in names if _own(name)))
