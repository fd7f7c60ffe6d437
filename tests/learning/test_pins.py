"""``pins`` of the shipped releases is what their wheels say, and follows the metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.learning.release import Release, source_only
from dsv4check.learning.sections.pins import learn
from dsv4check.learning.source import LearningError
from tests.learning.shipped import VERSIONS, assert_learned


@pytest.mark.parametrize("version", VERSIONS)
def test_shipped(version: str) -> None:
    assert_learned("pins", version)


def wheel(folder: Path, *requirements: str, python: str = ">=3.10, <3.14") -> Release:
    metadata = folder / "vllm-9.9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    lines = ["Metadata-Version: 2.4", "Name: vllm", f"Requires-Python: {python}"]
    lines += [f"Requires-Dist: {item}" for item in requirements]
    metadata.write_text("\n".join(lines) + "\n\nA description.\nRequires-Dist: transformers==1\n")
    return source_only(folder / "vllm")


def test_specifiers_in_one_order(tmp_path: Path) -> None:
    found = learn(wheel(tmp_path, "torch==2.14.0", "Transformers >= 5.1, != 5.2.*, < 6"))
    assert found["packages"] == {"torch": "==2.14.0", "transformers": "!=5.2.*,<6,>=5.1"}
    assert found["requires_python"] == "<3.14,>=3.10"
    assert "extras" not in found


def test_only_what_a_linux_server_installs(tmp_path: Path) -> None:
    found = learn(
        wheel(
            tmp_path,
            "torch==2.14.0",
            'numba==0.1; platform_machine == "s390x"',
            'setuptools<81; python_version > "3.11"',
            'setuptools<70; python_version <= "3.11"',
            "pydantic",
            "requests==1",
        )
    )
    assert found["packages"] == {"torch": "==2.14.0", "setuptools": "<81"}


def test_extras(tmp_path: Path) -> None:
    found = learn(
        wheel(tmp_path, "torch==2.14.0", 'b12x==1.5; extra == "b12x"', 'helion==1; extra == "all"', 'ray; extra == "x"')
    )
    assert found["extras"] == {"b12x": "==1.5"}


@pytest.mark.parametrize("requirements", [(), ("transformers==5.1",), ("torch==2.14.0", "not a requirement ==")])
def test_metadata_that_cannot_be_used(tmp_path: Path, requirements: tuple[str, ...]) -> None:
    with pytest.raises(LearningError, match="Requires-Dist"):
        learn(wheel(tmp_path, *requirements))


def test_no_metadata(tmp_path: Path) -> None:
    with pytest.raises(LearningError, match="expected one beside the package, found 0"):
        learn(source_only(tmp_path / "vllm"))
