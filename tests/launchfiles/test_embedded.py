"""Settings inside other objects."""

from __future__ import annotations

import pytest

from dsv4check.launchfiles.extract import extract
from dsv4check.launchfiles.records import Context
from dsv4check.launchfiles.text import SourceText

VALUES = """\
servingEngineSpec:
  modelSpec:
  - name: flash
    repository: vllm/vllm-openai
    tag: v0.24.0
    modelURL: deepseek-ai/DeepSeek-V4-Flash
    requestGPU: 8
    vllmConfig: {tensorParallelSize: 8}
"""
SERVE = """\
applications:
- name: llms
  import_path: ray.serve.llm:build_openai_app
  args:
    llm_configs:
    - model_loading_config: {model_id: x, model_source: deepseek-ai/DeepSeek-V4-Flash}
      accelerator_type: H200
      engine_kwargs: {tensor_parallel_size: 8, kv_cache_dtype: bfloat16}
"""


def indented(text: str, by: int) -> str:
    return "".join(" " * by + line for line in text.splitlines(keepends=True))


def launches(text: str) -> list[tuple[str, str, int]]:
    """Format, model and the line of the model."""
    context = Context(SourceText("a.yaml", text))
    found = extract(context)
    assert not found.problems
    made = []
    for launch in found.launches:
        word = next(word for word in launch.server.words if "DeepSeek" in word.text)
        assert word.text in text[word.span.start : word.span.stop]
        made.append((launch.format, word.text, context.line(word.span.start)))
    return made


@pytest.mark.parametrize(
    ("head", "by"),
    [
        ("apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nspec:\n  values:\n", 4),
        ("apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:\n  source:\n    helm:\n      valuesObject:\n", 8),
        ("apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:\n  source:\n    helm:\n      values: |\n", 8),
        ("apiVersion: v1\nkind: ConfigMap\ndata:\n  values.yaml: |\n", 4),
    ],
)
def test_values_of_a_chart(head: str, by: int) -> None:
    line = head.count("\n") + 6
    assert launches(head + indented(VALUES, by)) == [("helm-values", "deepseek-ai/DeepSeek-V4-Flash", line)]


def test_the_serve_config_of_a_ray_service() -> None:
    head = "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: r}\nspec:\n  serveConfigV2: |\n"
    assert launches(head + indented(SERVE, 4)) == [("ray-serve", "deepseek-ai/DeepSeek-V4-Flash", 11)]


def test_texts_that_are_something_else() -> None:
    assert (
        launches("apiVersion: v1\nkind: ConfigMap\ndata:\n  a.yaml: 'vllm: 1'\n  b.yml: |\n    vllm: [x]\n    b: 1\n")
        == []
    )
    assert launches("values: {a: 1}\nother: {values: [vllm]}\n") == []
