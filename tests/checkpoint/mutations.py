"""Checkpoints with some names changed at random: what converters, repacks and forks do to them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping

from dsv4check.checkpoint.tensors import Tensor

_CHANGES: tuple[Callable[[str, random.Random], str | None], ...] = (
    lambda _name, _random: None,
    lambda name, _random: f"model.{name}",
    lambda name, _random: f"language_model.model.{name}",
    lambda name, _random: name.replace(".scale", ".weight_scale"),
    lambda name, _random: name.replace(".scale", ".weight_scale_inv"),
    lambda name, _random: name.replace(".weight", ".qweight"),
    lambda name, _random: f"{name}_packed",
    lambda name, _random: name.replace("ffn.gate.bias", "ffn.gate.e_score_correction_bias"),
    lambda name, _random: name.replace("shared_experts.w2", "shared_experts.down_proj"),
    lambda name, _random: name.replace("attn.wq_a", "attn.q_a_proj").replace("attn.", "self_attn.", 1),
    lambda name, _random: name.replace("ffn.", "mlp."),
    lambda name, random_: re.sub(r"^(layers|mtp)\.\d+", lambda found: f"{found[1]}.{random_.randrange(70)}", name),
    lambda name, random_: re.sub(r"experts\.\d+", f"experts.{random_.choice([0, 7, 300, 4096])}", name),
    lambda name, _random: name.replace("mtp.", "model.mtp."),
    lambda name, _random: name.replace("layers.", "model.layers."),
    lambda name, _random: name + ".bias",
    lambda name, _random: name.rpartition(".")[0] + ".input_scale",
    lambda name, _random: name.rpartition(".")[0],
    lambda name, _random: name.replace("compressor.", "mla_attn.compressor."),
    lambda name, _random: name.replace("norm.weight", "layernorm.weight"),
    lambda name, _random: name.replace("head.", "lm_head."),
)


def mutated(tensors: Mapping[str, Tensor], seed: int, count: int = 12) -> dict[str, Tensor]:
    """The tensors with up to ``count`` names changed or dropped. The same seed gives the same result."""
    chosen = random.Random(seed)
    patterns: dict[str, list[str]] = {}
    for name in tensors:
        patterns.setdefault(re.sub(r"\d+", "N", name), []).append(name)
    # By pattern first: most names are those of experts.
    names = [chosen.choice(patterns[chosen.choice(list(patterns))]) for _ in range(count)]
    changes = {name: chosen.choice(_CHANGES) for name in names}
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        change = changes.get(name)
        new = name if change is None else change(name, chosen)
        if new and new not in result:
            result[new] = tensor
    return result
