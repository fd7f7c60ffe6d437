"""Readers of settings of vLLM that are neither a command nor a container: Ray, Helm values, SkyPilot, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsv4check.launchfiles.argument_lists import argument_list_launches
from dsv4check.launchfiles.gpustack import gpustack_launches
from dsv4check.launchfiles.helm_values import helm_values_launches
from dsv4check.launchfiles.llmd_values import modelservice_launches, role_values_launches
from dsv4check.launchfiles.model_objects import model_object_launches
from dsv4check.launchfiles.ray_serve import ray_serve_launches
from dsv4check.launchfiles.recipes import recipe_launches
from dsv4check.launchfiles.records import Context, Launch
from dsv4check.launchfiles.skypilot import skypilot_launches
from dsv4check.launchfiles.srt_slurm import srt_slurm_launches
from dsv4check.launchfiles.vllm_config import vllm_config_launches
from dsv4check.launchfiles.yaml_nodes import Document

SETTINGS_RECOGNISERS: Final[tuple[tuple[str, Callable[[Document, Context], list[Launch] | None]], ...]] = (
    ("ray-serve", ray_serve_launches),
    ("helm-values", helm_values_launches),
    ("kubernetes", model_object_launches),
    ("llm-d", modelservice_launches),
    ("llm-d", role_values_launches),
    ("skypilot", skypilot_launches),
    ("gpustack", gpustack_launches),
    ("recipe", recipe_launches),
    ("srt-slurm", srt_slurm_launches),
    ("vllm-config", vllm_config_launches),
    ("arguments", argument_list_launches),
)
"""Format and reader, in the order they are asked. Each gives None for a document of another kind."""
