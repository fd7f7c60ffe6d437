from __future__ import annotations

from pathlib import Path

import pytest

from dsv4check.host.cache_folders import Disk
from dsv4check.host.cgroups import read_cgroup
from dsv4check.host.limits import Launch, look_at_limits
from dsv4check.host.records import State
from dsv4check.host.ulimits import limit_of

GIB = 1 << 30
MIB = 1 << 20
FINE = {"RLIMIT_NOFILE": (1048576, 1048576), "RLIMIT_NPROC": (-1, -1), "RLIMIT_MEMLOCK": (-1, -1)}
FINE |= {"RLIMIT_STACK": (8 * MIB, -1)}


ROOMY = Disk(256 * GIB, 256 * GIB)


def tree(root: Path, **files: str) -> Path:
    """A fake machine: 512 GiB of RAM, no cgroup; ``files`` by path with ``__`` for ``/``."""
    default = {"proc/meminfo": "MemTotal:  536870912 kB\nMemAvailable: 524288000 kB\nSwapTotal: 0 kB\n"}
    for folder in ("dev/shm", "tmp", "root"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in {**default, **{name.replace("__", "/"): text for name, text in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def look(root: Path, *, shm=ROOMY, free=500 * GIB, limits=None, launch=None, **more):
    def disk(path: Path) -> Disk:
        return shm if path == root / "dev/shm" else Disk(free, free)

    more = {"env": {"HOME": "/root"}, "cpus": 64, "can_write": lambda _path: True, "platform": "linux"} | more
    wanted = {**FINE, **(limits or {})}
    found = look_at_limits(root, launch=launch or Launch(8), disk=disk, limit=wanted.get, **more)
    assert len({item.id for item in found}) == len(found)
    return {item.id: item for item in found}


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_a_roomy_machine_is_fine(tmp_path):
    found = look(tree(tmp_path))
    assert {item.id: item.state for item in found.values() if item.state is not State.OK} == {}
    assert found["limit-memory"].found == "512.0 GiB, 500.0 GiB available, swap 0"
    assert found["limit-container"].data["container"] is None
    assert "limit-cgroup-memory" not in found


def test_elsewhere_nothing_can_be_said(tmp_path):
    found = look(tree(tmp_path), platform="darwin")
    assert list(found) == ["limits"]
    assert found["limits"].state is State.UNKNOWN


def test_this_very_machine_is_looked_at():
    found = {item.id: item for item in look_at_limits()}
    assert {"limit-shm", "limit-memory", "limit-cpus", "limit-nofile", "limit-folder-temporary"} <= set(found)
    assert found["limit-cpus"].data["cpus"] >= 1
    pair = limit_of("RLIMIT_NOFILE")
    assert pair is not None
    assert found["limit-nofile"].data["soft"] == (pair[0] if pair[0] >= 0 else None)
    assert limit_of("RLIMIT_OF_NOTHING") is None


@pytest.mark.parametrize(
    ("shm", "gpus", "state", "words"),
    [
        (Disk(64 * MIB, 64 * MIB), 8, State.WARNING, "default of a Docker container"),
        (Disk(64 * MIB, 64 * MIB), None, State.NOTE, "default of a Docker container"),
        (Disk(64 * MIB, 64 * MIB), 1, State.OK, ""),
        (Disk(64 * MIB, 1 * MIB), 1, State.WARNING, "Almost nothing is free"),
        (Disk(16 * GIB, 100 * MIB), 2, State.WARNING, "Most of it is taken"),
        (Disk(512 * MIB, 512 * MIB), 2, State.WARNING, "queue of 160 MiB"),
        (Disk(2 * GIB, 2 * GIB), 8, State.OK, ""),
    ],
)
def test_shared_memory(tmp_path, shm, gpus, state, words):
    item = look(tree(tmp_path), shm=shm, launch=Launch(gpus))["limit-shm"]
    assert item.state is state
    assert words in item.why
    assert ("--ipc=host" in item.advice) == (state is not State.OK)


def test_shared_memory_that_is_not_there(tmp_path):
    def disk(path: Path) -> Disk:
        raise FileNotFoundError(2, "No such file or directory")

    found = {item.id: item for item in look_at_limits(tree(tmp_path), disk=disk, platform="linux", env={})}
    assert found["limit-shm"].state is State.UNKNOWN
    assert "No such file" in found["limit-shm"].why
    assert found["limit-folder-temporary"].state is State.UNKNOWN


def test_memory(tmp_path):
    small = tree(tmp_path / "a", proc__meminfo="MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    assert look(small)["limit-memory"].state is State.WARNING
    large = tree(tmp_path / "b")
    item = look(large, launch=Launch(8, 860 * GIB))["limit-memory"]
    assert item.state is State.NOTE
    assert "860 GiB" in item.why
    assert look(large, launch=Launch(8, 150 * GIB))["limit-memory"].state is State.OK
    broken = tree(tmp_path / "c", proc__meminfo="MemTotal: many kB\n\0\n:::\n")
    assert look(broken)["limit-memory"].state is State.UNKNOWN


def test_needs_grow_with_the_gpus_that_are_served_here(tmp_path):
    root = tree(tmp_path, proc__meminfo=f"MemTotal: {24 << 20} kB\nMemAvailable: {24 << 20} kB\n")
    for launch, state in (
        (Launch(8), State.WARNING),
        (Launch(8, here=False), State.NOTE),
        (Launch(1), State.OK),
        (Launch(), State.OK),
    ):
        found = look(root, launch=launch, cpus=4)
        assert [found[name].state for name in ("limit-memory", "limit-cpus")] == [state] * 2
        assert bool(found["limit-cpus"].wanted) == (launch.gpus is not None)
    assert "not seen here" in look(root, launch=Launch(8, here=False), cpus=4)["limit-cpus"].why


def test_second_cgroups_take_the_tightest_of_nested_groups(tmp_path):
    root = tree(tmp_path, proc__self__cgroup="0::/kubepods.slice/pod1.slice/box\n")
    write(root, "sys/fs/cgroup/cgroup.controllers", "cpu memory pids")
    write(root, "sys/fs/cgroup/kubepods.slice/memory.max", "max\n")
    write(root, "sys/fs/cgroup/kubepods.slice/pod1.slice/memory.max", f"{24 * GIB}\n")
    write(root, "sys/fs/cgroup/kubepods.slice/pod1.slice/memory.current", f"{3 * GIB}\n")
    write(root, "sys/fs/cgroup/kubepods.slice/pod1.slice/box/memory.max", f"{64 * GIB}\n")
    write(root, "sys/fs/cgroup/kubepods.slice/pod1.slice/cpu.max", "400000 100000\n")
    write(root, "sys/fs/cgroup/kubepods.slice/pod1.slice/box/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/kubepods.slice/pod1.slice/box/pids.max", "1024\n")
    found = look(root)
    memory = found["limit-cgroup-memory"]
    assert (memory.state, memory.found) == (State.WARNING, "24.0 GiB of the machine's 512.0 GiB")
    assert memory.source == "/sys/fs/cgroup/kubepods.slice/pod1.slice/memory.max"
    assert memory.data["used_bytes"] == 3 * GIB
    assert found["limit-container"].data == {"container": "Kubernetes", "cgroup_version": 2, "seccomp": None}
    cpus = found["limit-cpus"]
    assert (cpus.state, cpus.found, cpus.wanted) == (State.WARNING, "64 CPUs, quota 4", "10 or more")
    pids = found["limit-cgroup-pids"]
    assert pids.state is State.WARNING
    assert "--pids-limit" in pids.advice
    assert look(root, launch=Launch(2))["limit-cpus"].state is State.OK


def test_the_path_of_the_host_may_not_exist_in_the_container(tmp_path):
    """Without a cgroup namespace the path is the host's, while the mount shows the container's own group."""
    root = tree(tmp_path, proc__self__cgroup="0::/system.slice/docker-0123.scope\n")
    write(root, "sys/fs/cgroup/cgroup.controllers", "")
    write(root, "sys/fs/cgroup/memory.max", f"{200 * GIB}\n")
    found = look(root, launch=Launch(8, 300 * GIB))
    assert found["limit-cgroup-memory"].state is State.NOTE
    assert found["limit-container"].data["container"] == "Docker"


def test_first_cgroups(tmp_path):
    lines = "12:memory:/docker/ab\n5:cpu,cpuacct:/docker/ab\n3:pids:/docker/ab\n1:name=systemd:/docker/ab\n"
    root = tree(tmp_path, proc__self__cgroup=lines)
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(root, "sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes", f"{40 * GIB}\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us", "800000\n")
    write(root, "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_period_us", "100000\n")
    write(root, "sys/fs/cgroup/pids/docker/ab/pids.max", "max\n")
    cgroup = read_cgroup(root)
    assert (cgroup.version, cgroup.tasks) == (1, None)
    assert cgroup.memory is not None
    assert (cgroup.memory.value, cgroup.memory.source) == (
        40 * GIB,
        "/sys/fs/cgroup/memory/docker/ab/memory.limit_in_bytes",
    )
    assert cgroup.cpus is not None
    assert cgroup.cpus.value == 8
    write(root, "sys/fs/cgroup/cpu,cpuacct/docker/ab/cpu.cfs_quota_us", "-1\n")
    assert read_cgroup(root).cpus is None


@pytest.mark.parametrize(
    ("group", "limit", "quota"),
    [
        ("0::/../../../etc", "12 34", "1 0"),
        ("0::" + "/a" * 5000, "9" * 400, "x y"),
        ("nonsense\n\n::::", "", "100000"),
        ("0::/\0", "-5", "0 100000"),
    ],
)
def test_hostile_cgroup_files_say_nothing(tmp_path, group, limit, quota):
    root = tree(tmp_path, proc__self__cgroup=group)
    write(root, "sys/fs/cgroup/cgroup.controllers", "")
    write(root, "sys/fs/cgroup/memory.max", limit)
    write(root, "sys/fs/cgroup/cpu.max", quota)
    cgroup = read_cgroup(root)
    assert (cgroup.memory, cgroup.cpus, cgroup.tasks) == (None, None, None)


def test_a_limit_beyond_the_machine_is_none(tmp_path):
    root = tree(tmp_path, proc__self__cgroup="0::/\n")
    write(root, "sys/fs/cgroup/cgroup.controllers", "")
    write(root, "sys/fs/cgroup/memory.max", f"{1024 * GIB}\n")
    assert look(root)["limit-cgroup-memory"].state is State.OK


@pytest.mark.parametrize(
    ("mark", "kind"),
    [
        (".dockerenv", "Docker"),
        ("run/.containerenv", "Podman"),
        (".singularity.d/labels", "Apptainer"),
        ("var/run/secrets/kubernetes.io/x", "Kubernetes"),
    ],
)
def test_kinds_of_containers(tmp_path, mark, kind):
    root = tree(tmp_path, proc__self__status="Name:\tpython\nSeccomp:\t2\nSeccomp_filters:\t1\n")
    write(root, mark, "")
    item = look(root)["limit-container"]
    assert item.data == {"container": kind, "cgroup_version": None, "seccomp": 2}
    assert item.found == f"{kind}, no cgroup files, seccomp filter"


@pytest.mark.parametrize(
    ("name", "pair", "state"),
    [
        ("nofile", (1024, 1048576), State.OK),  # vLLM raises its own soft limit
        ("nofile", (1024, 1024), State.WARNING),
        ("nofile", (20000, 20000), State.NOTE),
        ("nofile", (1024, 20000), State.WARNING),  # it asks for all of it or nothing
        ("nofile", (65535, 65535), State.OK),
        ("nofile", (-1, -1), State.OK),
        ("nproc", (1024, 1024), State.WARNING),
        ("nproc", (96000, 96000), State.OK),
        ("memlock", (64 << 10, 64 << 10), State.NOTE),
        ("memlock", (-1, -1), State.OK),
        ("stack", (64 << 10, -1), State.WARNING),
        ("stack", (-1, -1), State.OK),
    ],
)
def test_ulimits(tmp_path, name, pair, state):
    item = look(tree(tmp_path), limits={f"RLIMIT_{name.upper()}": pair})[f"limit-{name}"]
    assert item.state is state
    assert bool(item.advice) == (state is not State.OK)
    assert item.data == {"soft": max(pair[0], 0) or None, "hard": max(pair[1], 0) or None}


def test_a_ulimit_that_the_system_lacks(tmp_path):
    assert look(tree(tmp_path), limits={"RLIMIT_NPROC": None})["limit-nproc"].state is State.UNKNOWN


def test_folders_follow_their_variables(tmp_path):
    env = {"HOME": "/home/me", "VLLM_CACHE_ROOT": "~/v", "TRITON_HOME": "/fast", "XDG_CACHE_HOME": "/xdg"}
    found = look(tree(tmp_path), env=env)
    folders = {name.removeprefix("limit-folder-"): item.data.get("folder") for name, item in found.items()}
    assert folders["vllm"] == "/home/me/v"
    assert folders["triton"] == "/fast/.triton/cache"
    assert folders["hub"] == "/xdg/huggingface/hub"
    assert folders["tilelang"] == "/home/me/.tilelang/cache"
    assert folders["temporary"] == "/tmp"
    assert found["limit-folder-vllm"].source == "VLLM_CACHE_ROOT"
    assert "not set" in found["limit-folder-tilelang"].source


def test_folders_that_cannot_be_written(tmp_path):
    root = tree(tmp_path)
    found = look(root, can_write=lambda path: path != root / "root")
    assert found["limit-folder-vllm"].state is State.ERROR
    assert found["limit-folder-vllm"].why.startswith("/root cannot be written")
    assert found["limit-folder-hub"].state is State.WARNING
    assert found["limit-folder-temporary"].state is State.OK


def test_folders_that_are_full_or_no_folders(tmp_path):
    root = tree(tmp_path)
    assert look(root, free=100 * MIB)["limit-folder-triton"].state is State.WARNING
    write(root, "root/.triton", "a file")
    item = look(root)["limit-folder-triton"]
    assert item.state is State.ERROR
    assert "no folder" in item.why


def test_a_download_that_does_not_fit(tmp_path):
    item = look(tree(tmp_path), free=100 * GIB, launch=Launch(8, 150 * GIB))["limit-folder-hub"]
    assert item.state is State.NOTE
    assert "150 GiB" in item.why


def test_nothing_is_written(tmp_path):
    root = tree(tmp_path)
    before = sorted(root.rglob("*"))
    look_at_limits(root, env={"HOME": "/root"}, platform="linux")
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("value", ["/a\0b", "/" + "x" * 5000, "relative/folder", "~", "//"])
def test_odd_folder_names_are_no_crash(tmp_path, value):
    env = dict.fromkeys(("HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TMPDIR", "HF_HOME"), value)
    root = tree(tmp_path)
    found = {item.id: item for item in look_at_limits(root, env=env, platform="linux")}
    assert found["limit-folder-vllm"].data["folder"]
