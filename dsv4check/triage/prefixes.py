"""Lines without their prefixes: the process that wrote them, the logger's level and place, and the message."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from dsv4check.records import dataclass
from dsv4check.triage.flat import in_lines, may_be_flat
from dsv4check.triage.wrappers import clean, level_of, unwrap

_LEVELS: Final = r"DEBUG|INFO|WARNING|ERROR|CRITICAL"
_PROCESS: Final = re.compile(
    r"\((?:(?P<name>[A-Za-z_][\w.:-]{0,80}(?: rank=\d{1,5})?)[ ,]{1,2})?pid=(?P<pid>\d{1,9})(?:,[^()]{0,120})?\)"
    r"(?: |$)"
    r"|\((?:raylet|autoscaler|gcs_server)(?:,[^()]{0,120})?\) "
)
_LOGGER: Final = re.compile(
    rf"(?P<level>{_LEVELS}) (?:(?:(?:\d{{4}}-)?(?P<day>\d\d-\d\d)[ T])?(?P<time>\d\d:\d\d:\d\d)"
    r"(?:[.,]\d{1,9})? \[?|\[)(?P<module>[\w./<>-]{1,200}:\d{1,6})\](?: |$)"
)
_LEVEL: Final = re.compile(
    rf"(?P<level>{_LEVELS}|WARN)(?::\s{{0,8}}| {{1,3}}(?=\S))(?P<module>[\w.]{{1,60}}:\d{{1,6}} (?:-- |\] ?))?"
)
_NATIVE: Final = re.compile(
    r"\[(?P<level>[WEFI])\d{3,4} \d\d:\d\d:\d\d\.\d{1,9} (?:\d+ )?(?P<module>[\w./-]{1,200}:\d{1,6})\] ?"
)
_RANK: Final = re.compile(r"\[(?P<rank>(?:rank|default)\d{1,5})\]: ?")
_NATIVE_LEVELS: Final = {"W": "WARNING", "E": "ERROR", "F": "CRITICAL", "I": "INFO"}
_REPEATED: Final = re.compile(r" ?\[repeated (\d{1,9})x across cluster\].{0,400}$")

# Prefixes that look like ordinary text: taken off where something unmistakable follows, or where it did often enough.
_WEAK: Final = re.compile(
    r"(?:\[[\w.:/-]{1,80}\]:? ?|\s{0,6}\d{1,7}(?:: ?|[|.)] ?|\s)"
    r"|[a-z0-9][\w.-]{1,80} [a-z0-9][\w.-]{0,60} |[\w.-]{1,60}: )"
)
_STRONG: Final = re.compile(
    rf"\((?:[A-Za-z_][\w.:-]{{0,80}}(?: rank=\d{{1,5}})?[ ,]{{1,2}})?pid=\d|(?:{_LEVELS})(?::\s| \d\d)"
    r"|Traceback \(most|\s{2}File \""
)
_SURE: Final = 3
_MOST_LEARNED: Final = 12


@dataclass(frozen=True, slots=True)
class PlainLine:
    """One line of one process."""

    number: int
    raw: str
    """As it stands in the log, cut."""
    text: str
    """The message, its indentation kept."""
    stream: str
    """Tells processes apart, those of other containers and of the same name, too."""
    process: str = ""
    level: str = ""
    module: str = ""
    wrapped: bool = False
    """A prefix was taken off."""
    times: int = 1
    """How often Ray says the line came."""
    moment: str = ""
    """Day and time from the logger's prefix."""


class PrefixReader:
    """Reads the lines of one log; it learns what stands in front of vLLM's own prefix."""

    def __init__(self, *, quoted: bool = True) -> None:
        self._quoted = quoted
        self._partial: dict[str, str] = {}
        self._shapes: dict[str, int] = {}
        self._learned: list[re.Pattern[str]] = []
        self._numbers: set[str] = set()

    def read(self, number: int, raw: str) -> Iterator[PlainLine]:
        """The line, or several when a collector put more than one into its record, or none while it goes on."""
        found = unwrap(clean(raw, quoted=self._quoted))
        text = in_lines(found.text) if may_be_flat(found.text) else found.text
        if found.partial or (self._partial and found.label in self._partial):
            text = self._partial.pop(found.label, "") + text
            if found.partial and len(text) < 1 << 17:
                self._partial[found.label] = text
                return
        shown = raw[:400]
        for piece in text.split("\n") if "\n" in text else (text,):
            line = self._plain(number, shown, piece, found.label, found.wrapped)
            if (found.level and not line.level) or (found.process and not line.process):
                process = line.process or found.process
                stream = line.stream if line.process else f"{found.label}|{process}"
                line = replace(line, stream=stream, process=process, level=line.level or found.level, wrapped=True)
            yield line

    def _plain(self, number: int, raw: str, text: str, label: str, wrapped: bool) -> PlainLine:
        times = 1
        if text.endswith((")", "cluster]")):
            repeated = _REPEATED.search(text, max(len(text) - 500, 0))
            if repeated:
                times, text = 1 + int(repeated[1]), text[: repeated.start()]
        logger = _LOGGER.search(text, 0, 500)
        if logger is not None:
            front = text[: logger.start()]
            process, stream, rest = _process(front)
            if rest.strip():
                self._learn(rest)
                label += self._label(rest) if _WEAK.fullmatch(rest) and not _RANK.match(rest) else ""
            return PlainLine(
                number,
                raw,
                text[logger.end() :],
                f"{label}|{stream}",
                process,
                logger["level"],
                logger["module"],
                True,
                times,
                f"{logger['day']} {logger['time']}" if logger["day"] else "",
            )
        text, mark = self._without_weak(text)
        label += mark
        process, stream, text = _process(text) if text.startswith("(") else ("", "", text)
        wrapped = wrapped or bool(mark) or bool(stream)
        level = module = ""
        rank = _RANK.match(text) if text.startswith("[") else None
        if rank is not None:
            inner, more, text = _process(text[rank.end() :])
            process, stream, wrapped = inner or process or rank["rank"], (more or stream + rank["rank"]), True
        native = _NATIVE.match(text) if text.startswith("[") else None
        if native is None and rank is not None:
            native = _NATIVE.match(text)
        if native is not None:
            level, module, text = _NATIVE_LEVELS[native["level"]], native["module"], text[native.end() :]
        else:
            word = _LEVEL.match(text) if text[:1] in "DIWEC" else None
            if word is not None:
                level = level_of(word["level"])
                module = (word["module"] or "").strip(" -]")
                text = text[word.end() :]
        return PlainLine(number, raw, text, f"{label}|{stream}", process, level, module, wrapped, times)

    def _without_weak(self, text: str) -> tuple[str, str]:
        """The text without a label, and the label."""
        weak = None if _RANK.match(text) else _WEAK.match(text)
        if weak is not None and _STRONG.match(text, weak.end()):
            self._learn(weak[0])
            return text[weak.end() :], self._label(weak[0])
        for learned in self._learned:
            found = learned.match(text)
            if found is not None:
                return text[found.end() :], self._label(found[0])
        return text, ""

    def _label(self, front: str) -> str:
        """What tells the stream apart: a host or the number of a task, but not the number of a line."""
        label = front.strip()
        if not label.strip(":|.)").isdigit():
            return label
        if label in self._numbers:
            return label
        if len(self._numbers) < 5_000:
            self._numbers.add(label)
        return ""

    def _learn(self, front: str) -> None:
        """Remembers a prefix once it stood in front of vLLM's own often enough."""
        if len(front) > 160 or '"' in front:
            return
        shape = re.sub(r"\d{1,30}", "0", front)
        count = self._shapes.get(shape, 0) + 1
        if len(self._shapes) < 200 or count > 1:
            self._shapes[shape] = count
        if count == _SURE and len(self._learned) < _MOST_LEARNED:
            # Numbers of lines are set flush right.
            flush = r"\s{0,8}" if shape.lstrip().startswith("0") else ""
            pattern = re.escape(shape.lstrip() if flush else shape).replace("0", r"\d{1,30}")
            self._learned.append(re.compile(flush + pattern))


def _process(text: str) -> tuple[str, str, str]:
    """Name of the process, what tells it from others, and the text behind the last prefix that names one."""
    name = stream = ""
    for _ in range(6):
        found = _PROCESS.match(text)
        if found is None:
            break
        stream = found[0].strip()
        name = found["name"] or name
        if found["name"] == "RayWorkerWrapper":
            # Ray gives all of them one name.
            name = f"RayWorkerWrapper pid={found['pid']}"
        text = text[found.end() :]
    if not stream:
        found = _PROCESS.search(text, 0, 300)
        if found is not None and found["name"]:
            return found["name"], found[0].strip(), text[: found.start()]
    return name, stream, text
