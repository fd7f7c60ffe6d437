"""The tiers of the CPU offload, read from a made-up tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.offload_tiers import FACTORY, tiers
from dsv4check.learning.source import LearningError, Source

REGISTERED = """
class SecondaryTierFactory:
    @classmethod
    def create(cls, config):
        config.pop("type")
        return config.pop("locality")

SecondaryTierFactory.register_tier("disk", "vllm.v1.tiers.disk", "DiskTier")
SecondaryTierFactory.register_tier("peer", "vllm.v1.tiers.peer", "PeerTier")
"""
DISK = """
class DiskTier:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, folder, threads=4): ...
"""
PEER = """
class PeerTier:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, **options):
        raise ValueError("PYTHONHASHSEED must be set for it")
"""


def tree(folder: Path, factory: str = REGISTERED) -> Source:
    for path, text in {FACTORY: factory, "v1/tiers/disk.py": DISK, "v1/tiers/peer.py": PEER}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return Source(folder)


def test_what_tiers_need_and_take(tmp_path: Path) -> None:
    assert tiers(tree(tmp_path)) == {
        "disk": {"needs": ["folder"], "takes": ["folder", "locality", "threads", "type"], "seed": False},
        "peer": {"needs": [], "takes": None, "seed": True},
    }


def test_a_release_without_tiers(tmp_path: Path) -> None:
    assert tiers(Source(tmp_path)) == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("register_tier", "add", "registers no tiers"),
        (', "DiskTier")', ")", "other words than name, module and class"),
        ("DiskTier", "Disk", "Disk"),
    ],
)
def test_a_factory_of_another_form_is_not_guessed(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(LearningError, match=said):
        tiers(tree(tmp_path, REGISTERED.replace(old, new)))
