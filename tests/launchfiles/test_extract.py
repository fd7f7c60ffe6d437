"""Which kind of file a file is."""

from __future__ import annotations

import pytest

from dsv4check.launchfiles.extract import extract, kind_of
from dsv4check.launchfiles.text import SourceText
from tests.launchfiles.reading import context_of


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("a.sh", "", "shell"),
        ("a.sbatch", "", "shell"),
        ("Makefile", "serve:\n\tvllm serve M\n", "shell"),
        ("x/justfile", "", "shell"),
        ("Procfile", "web: vllm serve M", "shell"),
        ("Dockerfile.gpu", "", "dockerfile"),
        ("a.service", "", "systemd"),
        ("a.yaml.j2", "", "yaml"),
        ("a.py", "", "python"),
        ("-", "#!/usr/bin/env python3\n", "python"),
        ("-", "#!/bin/bash\n", "shell"),
        ("-", "# c\n[Unit]\n", "systemd"),
        ("-", "FROM x\n", "dockerfile"),
        ("-", "apiVersion: v1\n", "yaml"),
        ("-", "from vllm import LLM\n", "python"),
        ("-", "vllm serve M\n", "shell"),
    ],
)
def test_kinds(path: str, text: str, kind: str) -> None:
    assert kind_of(SourceText(path, text)) == kind


def test_templates_are_passed_over() -> None:
    found = extract(context_of("{{- if .x }}\nvllm: 'x\n{{- end }}\n", "a.yaml"))
    assert [(item.skipped, item.line) for item in found.problems] == [(True, 0)]


def test_the_format_of_a_job_is_told() -> None:
    assert extract(context_of("#SBATCH -N 1\nvllm serve M\n", "a.sh")).format == "slurm"
    assert extract(context_of("vllm serve M\n", "a.sh")).format == "shell"
