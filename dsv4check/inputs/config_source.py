"""What the checks of a config.json share: the facts and flags around it, and how a Problem is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsv4check.deployment import ServeFlags
from dsv4check.problems import Origin, Problem, Stage
from dsv4check.records import dataclass, field

STRICT_CLASS = "StrictDataclassClassValidationError"
"""What transformers' strict config classes raise when fields contradict each other."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """What the checks need beside the reading itself."""

    facts: Mapping[str, Any]
    """The release's ``config_fields`` section."""
    file: Mapping[str, Any]
    """config.json before ``--hf-overrides``."""
    flags: ServeFlags
    name: str
    """The model as given on the command line."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """``--hf-overrides``."""
    unknown: tuple[str, ...] = ()
    """Keys of ``quantization_config`` of which it is not known whether the real file has them."""
    origin: Origin = field(default_factory=lambda: Origin("model"))

    @property
    def loads_weights(self) -> bool:
        """False when the launch loads no weights (``--load-format dummy``)."""
        return bool(self.flags.get("load_format") != "dummy")


def problem(
    source: ConfigSource, code: str, stage: Stage, exception: str = "", error: str = "", **data: Any
) -> Problem:
    """A Problem at the config's origin; ``data`` are the values its rule's message may name."""
    return Problem(code, stage, exception, error, data, source.origin)
