"""What the ``#SBATCH`` lines of a SLURM job say about its nodes and GPUs."""

from __future__ import annotations

import re
from typing import Final

from dsv4check.launchfiles.records import Stated
from dsv4check.launchfiles.text import SourceText, Span
from dsv4check.records import dataclass

_LINE: Final = re.compile(r"^#SBATCH[ \t]+(?P<rest>[^\r\n]*)", re.MULTILINE)
_OPTION: Final = re.compile(
    r"(?:^|(?<=\s))(?:(?P<name>--(?:gpus-per-node|gres|nodes|gpus|gpus-per-task|ntasks-per-node))(?:=|[ \t]+)"
    r"|-(?P<short>[NG])[= \t]*)(?P<value>[^\s#]+)"
)
_GPU: Final = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<count>[1-9]\d{0,3})")
_GRES: Final = re.compile(r"(?:^|,)gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?::(?P<count>[1-9]\d{0,3}))?(?=,|\(|$)")
_NODES: Final = re.compile(r"(?P<first>[1-9]\d{0,4})(?:-(?P<last>[1-9]\d{0,4}))?")


@dataclass(slots=True)
class Job:
    """What a job asks for."""

    gpu: Stated | None = None
    gpus: Stated | None = None
    """GPUs of one node."""
    nodes: Stated | None = None


def job_of(source: SourceText) -> Job | None:
    """The job that a script's header describes; None for a script without one."""
    lines = list(_LINE.finditer(source.text))
    if not lines:
        return None
    job = Job()
    total: Stated | None = None
    for line in lines:
        for option in _OPTION.finditer(line["rest"]):
            start = line.start("rest") + option.start("value")
            match option["name"] or option["short"]:
                case "--nodes" | "N":
                    if (nodes := _NODES.fullmatch(option["value"])) is not None and nodes["last"] in (
                        None,
                        nodes["first"],
                    ):
                        job.nodes = _stated(nodes, "first", start)
                case "--gres":
                    _gpus(job, _GRES.search(option["value"]), start)
                case "--gpus-per-node":
                    _gpus(job, _GPU.fullmatch(option["value"]), start)
                case "--gpus" | "G" if (gpus := _GPU.fullmatch(option["value"])) is not None:
                    total = _stated(gpus, "count", start)
                    if gpus["type"]:
                        job.gpu = _stated(gpus, "type", start)
                case _:
                    continue
    if job.gpus is None and total is not None:
        # `--gpus` is the sum over all nodes.
        count = int(job.nodes.value) if job.nodes is not None else 1
        if int(total.value) % count == 0:
            job.gpus = Stated(str(int(total.value) // count), total.span)
    return job


def _gpus(job: Job, match: re.Match[str] | None, start: int) -> None:
    if match is None:
        return
    job.gpus = _stated(match, "count", start) if match["count"] else Stated("1", _span(match, 0, start))
    if match["type"]:
        job.gpu = _stated(match, "type", start)


def _stated(match: re.Match[str], group: str, start: int) -> Stated:
    return Stated(match[group], _span(match, group, start))


def _span(match: re.Match[str], group: str | int, start: int) -> Span:
    return Span(start + match.start(group), start + match.end(group))
