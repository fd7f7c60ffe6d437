from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsv4check.data import rules_dir
from dsv4check.host.interpreter import Distribution, InterpreterFacts, TorchBuild
from dsv4check.host.packages import NAMES, look_at_packages
from dsv4check.host.records import Observation, State
from dsv4check.releases.facts import known_releases, load_facts


def pins(release: str = "0.33.0") -> Mapping[str, Any]:
    return load_facts(release).section("pins")


def released(release: str = "0.33.0") -> dict[str, str]:
    """Every package at a version that the release asks for exactly, and vLLM itself."""
    exact = {name: text[2:] for name, text in pins(release)["packages"].items() if text.startswith("==")}
    return {"vllm": release, "transformers": "5.18.0", "tokenizers": "0.23.5", "pydantic": "2.14.4"} | {
        name: version for name, version in exact.items() if name in NAMES
    }


def facts(
    packages: Mapping[str, str],
    *,
    version: str = "3.12.3",
    torch: TorchBuild | None = None,
    modules: Mapping[str, str] | None = None,
    twice: Mapping[str, tuple[tuple[str, str], ...]] | None = None,
    requires: tuple[str, ...] = (),
) -> InterpreterFacts:
    found = {
        name: (Distribution(name, number, f"/site/{name}-{number}.dist-info", requires if name == "torch" else ()),)
        for name, number in packages.items()
    }
    for name, items in (twice or {}).items():
        found[name] = tuple(Distribution(name, number, place) for number, place in items)
    return InterpreterFacts(version, "cpython", "/venv/bin/python", "/venv", found, modules or {}, torch)


def looked(
    given: InterpreterFacts,
    section: Mapping[str, Any] | None = None,
    *extras: str,
    env: Mapping[str, str] | None = None,
) -> dict[str, Observation]:
    seen = look_at_packages(given, pins() if section is None else section, extras, env=env)
    assert all(item.area == "packages" and "\n" not in item.why + item.advice for item in seen)
    assert all(item.why for item in seen if item.state not in (State.OK, State.NOTE))
    ids = [item.id for item in seen]
    assert len(ids) == len(set(ids))
    return {item.id: item for item in seen}


def changed(**versions: str) -> dict[str, Observation]:
    names = {name.replace("_", "-"): version for name, version in versions.items()}
    return looked(facts({**released(), **names}))


@pytest.mark.parametrize("release", known_releases())
def test_what_a_release_asks_for_is_fine(release: str) -> None:
    section = pins(release)
    packages = {
        name: text[2:] for name, text in section["packages"].items() if text.startswith("==") and name in NAMES
    } | {"vllm": release}
    seen = looked(facts(packages), section)
    wrong = [
        item for item in seen.values() if item.state not in (State.OK, State.NOTE) and item.found != "not installed"
    ]
    assert wrong == []
    assert seen["package-torch"].wanted == section["packages"]["torch"]


def test_a_complete_installation_has_nothing_to_say() -> None:
    seen = looked(facts(released()))
    assert {item.state for item in seen.values()} <= {State.OK, State.NOTE}
    assert seen["package-flashinfer-python"].found == "0.7.2.post1"
    assert seen["package-b12x"].state is State.NOTE


def test_the_build_of_a_version_does_not_count() -> None:
    seen = changed(torch="2.14.0+cu130", torchvision="0.29.0+cu130")
    assert seen["package-torch"].state is State.OK
    assert seen["package-torchvision"].state is State.OK


@pytest.mark.parametrize(
    ("name", "version", "state", "rule", "order"),
    [
        ("torch", "2.13.0+cu130", State.ERROR, "PK016", "older"),
        ("torch", "2.15.0", State.ERROR, "PK016", "newer"),
        ("torch", "2.14.1", State.WARNING, "PK016", "newer"),
        ("flashinfer-python", "0.7.0", State.WARNING, "PK008", "older"),
        ("flashinfer-python", "0.8.0", State.WARNING, "PK009", "newer"),
        ("nvidia-cutlass-dsl", "4.7.1", State.WARNING, "PK010", "older"),
        ("tilelang", "0.1.13", State.WARNING, None, "newer"),
        ("transformers", "5.21.0", State.WARNING, None, "newer"),
        ("transformers", "4.56.0", State.WARNING, None, "older"),
        ("pydantic", "2.11.0", State.WARNING, None, "older"),
    ],
)
def test_another_version_than_the_pin(name: str, version: str, state: State, rule: str | None, order: str) -> None:
    item = changed(**{name: version})[f"package-{name}"]
    assert (item.state, item.data.get("rule")) == (state, rule)
    assert item.why.startswith(f"It is {order} than what the release pins.")
    assert item.found == version
    assert item.wanted == pins()["packages"][name]
    assert item.advice.startswith(f"pip install '{name}")


def test_a_version_that_is_left_out_in_the_middle() -> None:
    section = pins("0.20.0")
    item = looked(facts({"vllm": "0.20.0", "transformers": "5.3.1"}), section)["package-transformers"]
    assert item.state is State.WARNING
    assert item.why.startswith("It is not what the release pins.")


def test_rules_that_are_named_exist() -> None:
    import dsv4check.host

    texts = [path.read_text() for folder in dsv4check.host.__path__ for path in Path(folder).glob("*.py")]
    named = {rule for text in texts for rule in re.findall(r'"((?:PK|HO|GA)\d{3})"', text)}
    assert {"PK016", "HO001"} <= named
    assert named <= {path.name[:5] for path in (rules_dir() / "checks").rglob("*.yaml")}


def test_missing_packages_count_beside_vllm_only() -> None:
    packages = released()
    del packages["torch"], packages["tilelang"]
    seen = looked(facts(packages), None, "ray")
    assert (seen["package-torch"].state, seen["package-torch"].data["rule"]) == (State.ERROR, "HO021")
    assert seen["package-tilelang"].state is State.WARNING
    assert seen["package-ray"].state is State.WARNING
    assert "package-ray" not in looked(facts(packages))
    del packages["vllm"]
    alone = looked(facts(packages), None, "ray")
    assert alone["package-vllm"].state is State.UNKNOWN
    assert not {"package-torch", "package-tilelang", "package-ray"} & set(alone)
    assert alone["package-flashinfer-python"].state is State.OK


def test_an_optional_package_that_a_launch_needs() -> None:
    assert looked(facts(released()), None, "b12x")["package-b12x"].state is State.WARNING
    assert looked(facts({**released(), "b12x": "1.5.1"}))["package-b12x"].state is State.OK
    assert looked(facts({**released(), "b12x": "1.4.0"}))["package-b12x"].state is State.WARNING


def test_without_pins_nothing_is_compared() -> None:
    seen = looked(facts({**released(), "torch": "2.99.0"}), {})
    assert seen["package-pins"].state is State.UNKNOWN
    assert (seen["package-torch"].state, seen["package-torch"].wanted) == (State.OK, "")
    assert seen["python-version"].state is State.NOTE


@pytest.mark.parametrize(
    ("version", "state"),
    [("3.12.3", State.OK), ("3.10.14", State.ERROR), ("3.15.0", State.ERROR), ("garbage", State.UNKNOWN)],
)
def test_the_python(version: str, state: State) -> None:
    item = looked(facts(released(), version=version))["python-version"]
    if state is State.UNKNOWN:
        assert item.wanted
    assert item.state is state


def test_versions_that_say_nothing() -> None:
    seen = changed(tilelang="", xgrammar="not a version")
    assert seen["package-tilelang"].state is State.WARNING
    assert "names no version" in seen["package-tilelang"].why
    assert seen["package-xgrammar"].state is State.UNKNOWN


def test_two_installations_of_one_package() -> None:
    one = {"torch": (("2.14.0", "/s/torch-2.14.0.dist-info"), ("2.13.0", "/s/torch-2.13.0.dist-info"))}
    seen = looked(facts(released(), twice=one))
    assert seen["package-torch-twice"].found == "2.14.0, 2.13.0"
    assert "side by side" in seen["package-torch-twice"].why
    assert seen["package-torch"].state is State.OK
    two = {"torch": (("2.14.0", "/user/torch-2.14.0.dist-info"), ("2.13.0", "/s/torch-2.13.0.dist-info"))}
    assert "hidden" in looked(facts(released(), twice=two))["package-torch-twice"].why


def test_the_parts_of_flashinfer() -> None:
    seen = changed(flashinfer_cubin="0.7.2.post1", flashinfer_jit_cache="0.7.2.post1+cu130")
    assert seen["package-flashinfer-cubin-match"].state is State.OK
    assert seen["package-flashinfer-jit-cache-match"].state is State.OK
    seen = changed(flashinfer_cubin="0.7.2", flashinfer_jit_cache="0.7.1+cu130")
    for name, rule in (("cubin", "PK007"), ("jit-cache", "PK017")):
        item = seen[f"package-flashinfer-{name}-match"]
        assert (item.state, item.data["rule"]) == (State.ERROR, rule)
        assert item.advice == f"pip install 'flashinfer-{name}==0.7.2.post1'"
    skipped = looked(facts({**released(), "flashinfer-cubin": "0.7.2"}), env={"FLASHINFER_DISABLE_VERSION_CHECK": "1"})
    assert skipped["package-flashinfer-cubin-match"].state is State.WARNING
    assert "package-flashinfer-cubin-match" not in changed()


def test_the_parts_of_cutlass() -> None:
    libs = "nvidia_cutlass_dsl_libs_"
    item = changed(**{f"{libs}base": "4.8.0", f"{libs}cu13": "4.7.1"})["package-nvidia-cutlass-dsl-match"]
    assert (item.state, item.data["rule"]) == (State.WARNING, "PK013")
    assert item.found == "nvidia-cutlass-dsl 4.8.0, nvidia-cutlass-dsl-libs-cu13 4.7.1"
    assert "package-nvidia-cutlass-dsl-match" not in changed(**{f"{libs}base": "4.8.0", f"{libs}cu13": "4.8.0"})


def test_builds_of_torch() -> None:
    def state(build: TorchBuild, vllm: str | None = "0.33.0") -> tuple[State, str]:
        packages = {**released(), "vllm": vllm} if vllm else {"torch": "2.14.0"}
        item = looked(facts(packages, torch=build))["package-torch-build"]
        return item.state, item.found

    cuda = TorchBuild("2.14.0+cu130", "13.0", None, "abc", "/s/torch/version.py")
    cpu = TorchBuild("2.14.0+cpu", None, None, "abc", "/s/torch/version.py")
    rocm = TorchBuild("2.14.0+rocm7.0", None, "7.0", "abc", "/s/torch/version.py")
    assert state(cuda) == (State.OK, "2.14.0+cu130 for CUDA 13.0")
    assert state(cpu) == (State.ERROR, "2.14.0+cpu for the CPU")
    assert state(cpu, "0.33.0+cpu")[0] is State.OK
    assert state(cpu, None)[0] is State.NOTE
    assert state(rocm)[0] is State.WARNING
    assert state(rocm, "0.33.0+rocm700")[0] is State.OK


def test_triton_is_what_torch_asks_for() -> None:
    wants = ('triton==3.9.0; platform_system == "Linux"', "filelock", "??? broken")
    fits = looked(facts({**released(), "triton": "3.9.0"}, requires=wants))["package-triton"]
    assert (fits.state, fits.wanted) == (State.OK, "==3.9.0")
    other = looked(facts({**released(), "triton": "3.6.0"}, requires=wants))["package-triton"]
    assert other.state is State.WARNING
    assert looked(facts({**released(), "triton": "3.6.0"}))["package-triton"].wanted == ""


def test_kernels_in_the_wheel_and_apart(tmp_path: Path) -> None:
    vllm, apart = tmp_path / "vllm", tmp_path / "deep_gemm"
    impls = vllm / "third_party" / "deep_gemm" / "include" / "deep_gemm" / "impls"
    impls.mkdir(parents=True)
    (impls / "sm120_gemm.cuh").touch()
    own = apart / "include" / "deep_gemm" / "impls"
    own.mkdir(parents=True)
    (own / "sm90_gemm.cuh").touch()
    modules = {"vllm": str(vllm)}
    seen = looked(facts(released(), modules=modules))
    assert seen["package-deep-gemm-wheel"].state is State.OK
    assert seen["package-deep-gemm-wheel"].data["sm120_headers"] is True
    assert seen["package-flashmla-wheel"].state is State.WARNING
    assert "package-deep-gemm-own" not in seen
    (vllm / "third_party" / "flashmla").mkdir()
    modules |= {"deep_gemm": str(apart), "flash_mla": str(tmp_path / "flash_mla")}
    seen = looked(facts({**released(), "deep-gemm": "2.5.0"}, modules=modules))
    item = seen["package-deep-gemm-own"]
    assert (item.state, item.found, item.data) == (
        State.WARNING,
        "2.5.0",
        {"sm120_headers": False, "rule": "PK011"},
    )
    assert seen["package-flashmla-wheel"].state is State.OK
    assert seen["package-flash-mla-own"].state is State.NOTE
    (own / "sm120_gemm.cuh").touch()
    assert looked(facts(released(), modules=modules))["package-deep-gemm-own"].data["sm120_headers"] is True
