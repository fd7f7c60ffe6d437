"""What a release does with a checkpoint's tensors and files: ``names`` per model, ``loader`` for all, ``files``."""

from __future__ import annotations

from typing import Any

from ...release import Release
from ..draft_names import learn_draft_names
from .files import learn_files
from .loader import learn_loader_facts
from .targets import learn_targets


def learn(release: Release) -> dict[str, Any]:
    """Facts for ``dsv4check/checkpoint``."""
    return learn_from_text(release)


def learn_from_text(release: Release) -> dict[str, Any]:
    """The facts for which no vLLM has to run."""
    source = release.source
    return {
        "names": {**learn_targets(source), **learn_draft_names(release)},
        "loader": learn_loader_facts(source),
        "files": learn_files(source),
    }
