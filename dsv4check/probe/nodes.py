"""The same command on every node of an existing Ray cluster, which is how vLLM runs over several machines.

Nothing need be installed on the nodes but what vLLM needs itself: the program travels as one archive, is unpacked into
a folder of its own, and runs with the interpreter of Ray's workers, in which vLLM's workers would run, too.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dsv4check.records import dataclass, field

CONNECT_SECONDS: Final = 60.0
_LEFT_OUT: Final = ("__pycache__",)
_REACH_SECONDS: Final = 5.0
"""For a cluster's address to answer at all; Ray itself tries for minutes."""


class RayUnavailable(Exception):  # noqa: N818 - named like RehearsalUnavailable
    """There is no Ray, or no cluster to connect to; the message says which."""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """What one command said on one node."""

    code: int | None
    """Its exit code; None when it was not run or did not end in time."""
    content: Mapping[str, Any] | None
    """The JSON object it printed."""
    why: str = ""
    """Why there is no content: the last line of stderr, a time-out, a node that went away."""


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """What all commands said on one node."""

    name: str
    """Host name, with the start of the node's id where two nodes share it."""
    node_id: str
    gpus: int
    """GPUs that the node gives to Ray."""
    answers: Mapping[str, CommandAnswer] = field(default_factory=dict)
    """By the name of the command."""


def ask_nodes(
    commands: Mapping[str, Sequence[str]],
    *,
    address: str = "auto",
    seconds: float = 180.0,
    report: Callable[[str], None] = lambda _text: None,
) -> list[NodeAnswer]:
    """Run ``dsv4check WORDS...`` for every entry of ``commands`` once on every live node, all nodes at the same time.

    ``seconds`` bounds one command on a node. Raises RayUnavailable without Ray or without a cluster.
    """
    ray = _ray()
    with _connected(ray, address):
        nodes = sorted((node for node in ray.nodes() if node.get("Alive")), key=lambda node: str(node["NodeID"]))
        if not nodes:
            raise RayUnavailable(f"the Ray cluster at {address} has no live node")
        archive = ray.put(packed_program())
        words = {name: list(items) for name, items in commands.items()}
        waiting = {}
        for node in nodes:
            waiting[_start(ray, node, archive, words, seconds)] = node
        report(f"{len(nodes)} nodes: {', '.join(_names(nodes).values())}")
        limit = time.monotonic() + CONNECT_SECONDS + seconds * max(1, len(words))
        answers = _collect(ray, waiting, limit, words)
    names = _names(nodes)
    return [
        NodeAnswer(
            names[node["NodeID"]],
            str(node["NodeID"]),
            int(node.get("Resources", {}).get("GPU", 0)),
            answers[node["NodeID"]],
        )
        for node in nodes
    ]


def packed_program() -> bytes:
    """This package with its rules as a zip archive, laid out as an installed one."""
    from dsv4check.data import rules_dir

    package = Path(__file__).resolve().parents[1]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(package):
            if package / "rules" not in path.parents:
                archive.write(path, Path("dsv4check") / path.relative_to(package))
        for path in _files(rules_dir()):
            archive.write(path, Path("dsv4check", "rules") / path.relative_to(rules_dir()))
    return stream.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part in _LEFT_OUT for part in path.parts):
            yield path


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise RayUnavailable(
            "Ray is not installed in this Python: pip install 'dsv4check[ray]', or use the Python of the cluster"
        ) from None


@contextlib.contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A connection to the cluster, left as it was found: one that is there already is used and kept."""
    if ray.is_initialized():
        yield
        return
    _reach(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = " ".join(str(error).split())[:300]
        raise RayUnavailable(f"no Ray cluster at {address!r} ({said})") from None
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise RayUnavailable when nobody listens at ``host:port``; other forms (``auto``) are Ray's to judge."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RayUnavailable(f"no Ray cluster at {address!r} ({error})") from None


def _start(ray: Any, node: Mapping[str, Any], archive: Any, words: Mapping[str, list[str]], seconds: float) -> Any:
    """The task on that very node; it takes nothing that a running server may hold."""
    strategy = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
    task = ray.remote(_task()).options(
        num_cpus=0,
        num_gpus=0,
        max_retries=0,
        scheduling_strategy=strategy(node["NodeID"], soft=False),
    )
    return task.remote(archive, words, seconds)


def _task() -> Callable[[bytes, dict[str, list[str]], float], dict[str, Any]]:
    """The function that runs on a node. Made here, so that it travels by value: this package is not installed there."""

    def run(archive: bytes, words: dict[str, list[str]], seconds: float) -> dict[str, Any]:
        import io
        import os
        import shutil
        import subprocess
        import sys
        import tempfile
        import zipfile

        folder = tempfile.mkdtemp(prefix="dsv4check-node-")
        answers: dict[str, Any] = {}
        try:
            with zipfile.ZipFile(io.BytesIO(archive)) as packed:
                packed.extractall(folder)
            env = dict(os.environ)
            env["PYTHONPATH"] = os.pathsep.join(part for part in (folder, env.get("PYTHONPATH", "")) if part)
            if env.get("CUDA_VISIBLE_DEVICES") == "":
                # Older Ray hides the node's GPUs from a task that reserves none.
                del env["CUDA_VISIBLE_DEVICES"]
            for name, items in words.items():
                try:
                    done = subprocess.run(
                        [sys.executable, "-m", "dsv4check", *items],
                        stdin=subprocess.DEVNULL,
                        capture_output=True,
                        timeout=seconds,
                        env=env,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    answers[name] = (None, "", f"it took longer than {seconds:.0f} s")
                    continue
                said = done.stderr.decode("utf-8", "replace")[-2000:]
                answers[name] = (done.returncode, done.stdout.decode("utf-8", "replace"), said)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return answers

    return run


def _collect(
    ray: Any, waiting: Mapping[Any, Mapping[str, Any]], limit: float, words: Mapping[str, list[str]]
) -> dict[str, dict[str, CommandAnswer]]:
    """The answers by node; a node that fails or goes away gets the reason instead."""
    answers: dict[str, dict[str, CommandAnswer]] = {}
    for reference, node in waiting.items():
        try:
            raw = ray.get(reference, timeout=max(0.1, limit - time.monotonic()))
            answers[node["NodeID"]] = {name: _answer(*raw[name]) for name in words}
        except Exception as error:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)
            said = " ".join(str(error).split())[:300] or "no answer"
            why = f"{type(error).__name__}: {said}"
            answers[node["NodeID"]] = {name: CommandAnswer(None, None, why) for name in words}
    return answers


def _answer(code: int | None, output: str, errors: str) -> CommandAnswer:
    try:
        content = json.loads(output)
    except ValueError:
        content = None
    if isinstance(content, dict):
        return CommandAnswer(code, content)
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = lines[-1][:300] if lines else "it printed no JSON object"
    return CommandAnswer(code, None, said if code is None else f"exit code {code}: {said}")


def _names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Node id -> a name for people, unique in the cluster."""
    hosts = [str(node.get("NodeManagerHostname") or node.get("NodeManagerAddress") or "node") for node in nodes]
    return {
        node["NodeID"]: host if hosts.count(host) == 1 else f"{host} ({str(node['NodeID'])[:8]})"
        for node, host in zip(nodes, hosts, strict=True)
    }
