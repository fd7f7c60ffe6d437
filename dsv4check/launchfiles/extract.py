"""Which kind of file a file is, and the launches in it."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from dsv4check.launchfiles.recipe_lines import recipe_kind
from dsv4check.launchfiles.records import TEMPLATE, Context, Extraction, Launch, NotUnderstood
from dsv4check.launchfiles.text import SourceText

MARKS: Final = re.compile(
    r"vllm|deepseek|sglang|tensor[-_]?parallel|kv[-_]?cache[-_]?dtype|max[-_]?model[-_]?len|served[-_]model",
    re.IGNORECASE,
)
"""A file without any of these holds no launch."""
_TEMPLATE_SUFFIXES: Final = (".tpl", ".tmpl", ".gotmpl", ".j2", ".jinja", ".jinja2")
_TEMPLATE_LINE: Final = re.compile(r"^\s*\{\{[-\s]*(?:if|range|with|define|include|else|end|template)\b|^\s*\{%", re.M)
_SHELL_SUFFIXES: Final = (".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".job", ".batch", ".envrc")
_UNIT_SUFFIXES: Final = (".service", ".container", ".conf")
_YAML_SUFFIXES: Final = (".yaml", ".yml", ".json")


def extract(context: Context) -> Extraction:
    """The launches of a file and the parts that could not be understood. Never raises for what is in the file."""
    kind = kind_of(context.source)
    template = _template(context.source)
    launches: list[Launch] = []
    name = kind
    try:
        name, launches = _read(kind, context)
    except RecursionError:
        context.problems.append(NotUnderstood(0, "nested too deeply"))
    if template and not launches:
        # What looked like broken YAML or shell is a template's own language.
        return Extraction(name, (), (NotUnderstood(0, TEMPLATE, skipped=True),))
    problems = tuple(dict.fromkeys(context.problems))
    launches += context.found
    return Extraction(name, tuple(launches), problems)


def _read(kind: str, context: Context) -> tuple[str, list[Launch]]:
    # Imported one by one: most files are of one kind.
    match kind:
        case "dockerfile":
            from dsv4check.launchfiles.dockerfile import dockerfile_launches

            return kind, dockerfile_launches(context)
        case "systemd":
            from dsv4check.launchfiles.systemd import systemd_launches

            return kind, systemd_launches(context)
        case "python":
            from dsv4check.launchfiles.python_calls import python_launches

            return kind, python_launches(context)
        case "yaml":
            from dsv4check.launchfiles.yaml_launches import yaml_launches

            return yaml_launches(context)
        case _:
            from dsv4check.launchfiles.shell import shell_launches

            launches = shell_launches(context)
            return launches[0].format if launches else kind, launches


def kind_of(source: SourceText) -> str:
    """``shell``, ``dockerfile``, ``systemd``, ``python`` or ``yaml``: by the name, else by how the text begins."""
    path = PurePosixPath(source.path)
    name = path.name.lower()
    for suffix in _TEMPLATE_SUFFIXES:
        name = name.removesuffix(suffix)
    suffix = PurePosixPath(name).suffix
    if recipe_kind(name):
        return "shell"
    if name.startswith(("dockerfile", "containerfile")) or suffix in (".dockerfile", ".containerfile"):
        return "dockerfile"
    if suffix == ".py":
        return "python"
    if suffix in _YAML_SUFFIXES:
        return "yaml"
    if suffix in _SHELL_SUFFIXES:
        return "shell"
    if suffix in _UNIT_SUFFIXES:
        return "systemd"
    return _by_content(source.text)


def _by_content(text: str) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip() and not line.startswith("# ")), "")
    if first.startswith("#!"):
        return "python" if "python" in first else "shell"
    if first.startswith("[") and first.endswith("]") and first[1:-1].isalpha():
        return "systemd"
    if re.match(r"(?:FROM|ARG)\s", first):
        return "dockerfile"
    if first.startswith(("{", "[", "---", "%YAML")) or re.match(r"[\w.\-\"']+:(?:\s|$)", first):
        return "yaml"
    if re.match(r"(?:import|from)\s+\w", first):
        return "python"
    return "shell"


def _template(source: SourceText) -> bool:
    """True for text of a templating language, which is no valid file before it was rendered."""
    return source.path.lower().endswith(_TEMPLATE_SUFFIXES) or bool(_TEMPLATE_LINE.search(source.text))
