"""Where the checkpoint of a launch is found; the Hub is a stand-in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsv4check.checkpoint.locate import CACHE, HUB, LOCAL, PUBLISHED, Located, locate_checkpoint
from dsv4check.checkpoint.shards import write_index, write_shard
from dsv4check.checkpoint.tensors import Tensor
from dsv4check.deployment import ServeFlags
from dsv4check.errors import InputError

REPO = "org/some-model"
FLASH = "deepseek-ai/DeepSeek-V4-Flash"


def checkpoint(folder: Path, name: str = "x") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    size = write_shard(folder / "a.safetensors", {name: Tensor("BF16", (4,))})
    write_index(folder, {name: "a.safetensors"}, size)
    return folder


def cached(cache: Path, repo: str, commit: str, name: str, ref: str | None = "main") -> None:
    folder = cache / ("models--" + repo.replace("/", "--"))
    checkpoint(folder / "snapshots" / commit, name)
    if ref is not None:
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)


def locate(name: str, env: Mapping[str, str] | None = None, **options: Any) -> Located | None:
    flags = options.pop("flags", {})
    return locate_checkpoint(name, ServeFlags(model=name, values=flags), env or {"HF_HOME": "/nowhere"}, **options)


def names(found: Located | None) -> set[str]:
    assert found is not None
    return set(found.checkpoint.tensors)


@pytest.mark.parametrize("file", ["", "config.json", "a.safetensors", "model.safetensors.index.json"])
def test_a_local_folder_or_file(tmp_path: Path, file: str) -> None:
    folder = checkpoint(tmp_path / "m")
    found = locate(str(folder / file), online=True)
    assert found is not None
    assert (names(found), found.place) == ({"x"}, LOCAL)


def test_a_local_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(str(tmp_path)) is None
    assert locate(str(tmp_path / "config.json")) is None
    named = tmp_path / "DeepSeek-V4-Flash"
    named.mkdir()
    found = locate(str(named))
    assert found is not None
    assert found.place == PUBLISHED


def test_a_stated_path_goes_before_everything(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    found = locate(FLASH, path=folder, online=True)
    assert found is not None
    assert (names(found), found.place) == ({"x"}, LOCAL)
    with pytest.raises(InputError, match="no such file"):
        locate(FLASH, path=tmp_path / "other")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no safetensors file or index"):
        locate(FLASH, path=tmp_path / "empty")


def test_the_cache(tmp_path: Path) -> None:
    env = {"HF_HOME": str(tmp_path)}
    cached(tmp_path / "hub", REPO, "c1", "main tensor")
    cached(tmp_path / "hub", REPO, "c2", "tagged tensor", "v2")
    found = locate(REPO, env)
    assert found is not None
    assert (names(found), found.place) == ({"main tensor"}, CACHE)
    assert names(locate(REPO, env, flags={"revision": "v2"})) == {"tagged tensor"}
    assert names(locate(REPO, env, flags={"revision": "c2"})) == {"tagged tensor"}
    assert locate(REPO, env, flags={"revision": "v3"}) is None
    cached(tmp_path / "elsewhere", REPO, "c3", "downloaded tensor")
    elsewhere = {"download_dir": str(tmp_path / "elsewhere")}
    assert names(locate(REPO, env, flags=elsewhere)) == {"downloaded tensor"}
    assert names(locate(REPO, env, flags=elsewhere | {"revision": "v2"})) == {"tagged tensor"}


def test_published_names_are_the_last_resort(tmp_path: Path) -> None:
    found = locate(FLASH)
    assert found is not None
    assert (len(found.checkpoint.tensors), found.place) == (69187, PUBLISHED)
    cached(tmp_path / "hub", FLASH, "c1", "mine")
    assert names(locate(FLASH, {"HF_HOME": str(tmp_path)})) == {"mine"}


@pytest.mark.parametrize(
    "name", ["", "org/unknown", "a/b/c", "/nothing/here", "x\0y", "../..", "~nobody/x", "a" * 5000]
)
def test_what_is_known_nowhere(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = locate(name)
    assert found is None or name == "../.."


def hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[str, str | None]]:
    """Put a stand-in for huggingface_hub in place; returns what it is asked for."""
    asked: list[tuple[str, str | None]] = []

    class Api:
        def get_safetensors_metadata(self, repo_id: str, *, revision: str | None = None) -> Any:
            asked.append((repo_id, revision))
            if isinstance(answer, Exception):
                raise answer
            return answer

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Api))
    return asked


def repository(weight_map: dict[str, str], total: Any, **files: dict[str, tuple[str, list[int]]]) -> SimpleNamespace:
    """A SafetensorsRepoMetadata as huggingface_hub 0.30 to 1.33 return it."""
    headers = {
        f"{file}.safetensors": SimpleNamespace(
            tensors={name: SimpleNamespace(dtype=dtype, shape=shape) for name, (dtype, shape) in tensors.items()}
        )
        for file, tensors in files.items()
    }
    metadata = None if total is None else {"total_size": total}
    return SimpleNamespace(metadata=metadata, weight_map=weight_map, files_metadata=headers)


def test_headers_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = repository(
        {"x": "a.safetensors", "y": "b.safetensors"}, 20, a={"x": ("BF16", [2, 4])}, b={"y": ("F32", [1])}
    )
    asked = hub(monkeypatch, answer)
    found = locate(REPO, online=True, flags={"revision": "v2"})
    assert found is not None
    assert asked == [(REPO, "v2")]
    assert found.place == HUB
    assert found.checkpoint.tensors == {"x": Tensor("BF16", (2, 4)), "y": Tensor("F32", (1,))}
    assert found.checkpoint.files == answer.weight_map
    assert (found.checkpoint.total_size, found.checkpoint.defects) == (20, ())
    assert "revision v2" in found.checkpoint.source


def test_an_upload_that_does_not_fit_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"x": "a.safetensors", "gone": "a.safetensors", "z": "c.safetensors"}
    hub(monkeypatch, repository(listed, 99, a={"x": ("BF16", [1]), "new": ("BF16", [1])}))
    found = locate(REPO, online=True)
    assert found is not None
    assert {defect.kind: defect.examples for defect in found.checkpoint.defects} == {
        "not-in-index": ("new",),
        "not-in-shard": ("gone",),
        "shard-missing": ("z",),
    }
    assert found.checkpoint.tensors["z"] == Tensor("", None)
    assert "gone" not in found.checkpoint.tensors
    hub(monkeypatch, repository({"x": "a.safetensors"}, 99, a={"x": ("BF16", [1])}))
    wrong = locate(REPO, online=True)
    assert wrong is not None
    assert [defect.kind for defect in wrong.checkpoint.defects] == ["size-mismatch"]


def error(name: str, *bases: type[Exception]) -> Exception:
    """An exception of a class as the libraries name it."""
    made: Exception = type(name, bases or (Exception,), {})("status 4xx\nRequest ID: 1")
    return made


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (error("GatedRepoError", type("RepositoryNotFoundError", (Exception,), {})), "accept its terms"),
        (error("RepositoryNotFoundError"), "no such repository"),
        (error("RevisionNotFoundError"), "check --revision"),
        (error("NotASafetensorsRepoError"), "no safetensors checkpoint"),
        (error("SafetensorsParsingError"), "damaged"),
        (error("RemoteEntryNotFoundError", type("EntryNotFoundError", (Exception,), {})), "incomplete"),
        (error("LocalEntryNotFoundError", type("EntryNotFoundError", (Exception,), {})), "check the network"),
        (error("OfflineModeIsEnabled", ConnectionError), "HF_HUB_OFFLINE"),
        (error("ConnectError", type("TransportError", (Exception,), {})), "check the network"),
        (TimeoutError("timed out"), "check the network"),
        (ConnectionResetError("reset"), "check the network"),
        (RuntimeError("what is this\nsecond line"), r"\(what is this\)"),
        (KeyError(), r"\(KeyError\)"),
    ],
)
def test_a_hub_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, raised: Exception, said: str) -> None:
    hub(monkeypatch, raised)
    with pytest.raises(InputError, match=said) as caught:
        locate(REPO, online=True)
    assert REPO in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("answer", [None, 5, SimpleNamespace(weight_map=None, files_metadata=None, metadata=None)])
def test_an_answer_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    hub(monkeypatch, answer)
    with pytest.raises(InputError, match="could not be read"):
        locate(REPO, online=True)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'dsv4check\[hub\]'"):
        locate(REPO, online=True)
    assert locate(REPO) is None, "without --online nobody asks for it"


def test_the_network_is_asked_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = hub(monkeypatch, repository({"x": "a.safetensors"}, None, a={"x": ("BF16", [1])}))
    locate(str(checkpoint(tmp_path / "m")), online=True)
    cached(tmp_path / "hub", REPO, "c1", "mine")
    locate(REPO, {"HF_HOME": str(tmp_path)}, online=True)
    locate(FLASH)
    for name in ("/nothing/here", "./nothing/here", "no-owner", "a/b/c"):
        assert locate(name, online=True) is None
    assert asked == []


def test_checking_a_launch_does_not_import_the_reader() -> None:
    program = (
        "import sys; from dsv4check import check; check('vllm serve deepseek-ai/DeepSeek-V4-Flash -tp 8', gpu='H200', "
        "gpus=8, vllm='0.33.0'); print([name for name in sys.modules if name.startswith('dsv4check.checkpoint.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # The features of a layer's parameters size the weights, and import nothing.
    assert done.stdout.strip() == "['dsv4check.checkpoint.parameters']"
