"""Pieces of a report that may hold a launch: fenced blocks, manifests, units, shell lines in prose and logs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.launchfiles.extract import MARKS
from dsv4check.triage.reprs import read_repr

_FENCE: Final = re.compile(
    r"^[ \t>]*(?:```|~~~)[^\n]*\n(?P<body>.*?)(?:^[ \t>]*(?:```|~~~)|\Z)", re.MULTILINE | re.DOTALL
)
_YAML: Final = re.compile(r"^[ \t]*(?:apiVersion|services|image|kind):", re.MULTILINE)
_UNIT: Final = re.compile(r"^\[(?:Unit|Service)\][ \t]*\n(?:(?!```)[^\n]*\n){0,200}?(?=```|\Z|\n\n\n)", re.MULTILINE)
_START: Final = re.compile(
    r"(?:\bvllm serve\b|-m vllm\.entrypoints|\b(?:docker|podman|nerdctl)(?: container)? run\b|vllm/vllm-openai\S* )"
)
_PROSE_BEFORE: Final = re.compile(
    r"^[^;&|'\"{}=$]{1,4000}?\s(?=(?:[A-Z][A-Z0-9_]+=\S+\s+)*(?:\S*/)?(?:vllm serve\s|python[\d.]*\s+-m\s+vllm\.))"
)
_WRAPPERS: Final = re.compile(
    r"\b(?:docker|podman|nerdctl|srun|mpirun|uv|exec|nohup|time|numactl|taskset|sudo|env|bash|sh)\s"
)
_PROMPT: Final = re.compile(
    r"^[>\s]*(?:ExecStart=[-@+!:]*|[\u2502\u251c\u2514\u2500\s]*\d{1,8} (?=/))?(?:\([\w.-]{1,60}\) )?"
    r"(?:[\w.-]{1,60}@[\w.-]{1,100}:?[^\n$#>]{0,200}[$#] ?|PS [A-Za-z]:[^\n>]{0,200}> ?|[$#>] )?"
)
_SETTING: Final = re.compile(r"^[>\s$#]*(?:export\s+)?[A-Za-z_]\w{0,80}=\S*(?:\s+[A-Za-z_]\w{0,80}=\S*)*\s*\\?\s*$")
_INLINE: Final = re.compile(r"`([^`\n]{1,4000})`")
_LOG: Final = re.compile(
    r"\s(?:\([A-Z]\w+ pid=\d+\)|(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d)|^(?:\([A-Z]\w+ pid=\d+\)|Traceback )"
)
_FLAG_LINE: Final = re.compile(r"^[>\s]*(?:--?[a-zA-Z]|\{|\}|'|\"\w|<<|-[ve] )")
_LEFT_OUT: Final = re.compile(r"(?<=\S)\s+(?:\.\.\.|…|\[\.\.\.\]|<\.\.\.>)(?=\s)")
"""What stands for words that a report leaves out."""
_LIST: Final = re.compile(
    r"\[\s*['\"](?:[^'\"\s\[\]]{0,200}/)?(?:vllm['\"],\s*['\"]serve|python[\d.]*['\"],\s*['\"]-m['\"],\s*['\"]vllm)"
)
_IN_FILE: Final = re.compile(r"^\s*(?:CMD|ENTRYPOINT|(?:- )?(?:command|args|entrypoint)\s*:)\s*\Z")
_MOST_LINES: Final = 120
_MOST_REGIONS: Final = 60


def launch_regions(head: str) -> Iterator[tuple[str, int, bool]]:
    """Pieces of the text that may hold a launch, where they begin, and whether they stand there as they are."""
    last = 0
    outside: list[tuple[int, str]] = []
    for count, match in enumerate(_FENCE.finditer(head)):
        outside.append((last, head[last : match.start()]))
        last = match.end()
        if count > _MOST_REGIONS:
            break
        body = match["body"]
        unit = _UNIT.search(body) if "ExecStart=" in body else None
        if unit is not None:
            yield unit.group(), match.start("body") + unit.start(), True
        elif _YAML.search(body) and MARKS.search(body):
            yield body, match.start("body"), True
        else:
            outside.append((match.start("body"), body))
    outside.append((last, head[last:]))
    for at, text in outside:
        if _YAML.search(text) and not _LOG.search(text):
            yield text, at, True
        yield from _shell_regions(text, at)
    yield from _printed_lists(head)


def _printed_lists(head: str) -> Iterator[tuple[str, int, bool]]:
    """Commands as a program prints them: a list of words."""
    for count, match in enumerate(_LIST.finditer(head)):
        if count >= _MOST_REGIONS:
            return
        if _IN_FILE.match(head[head.rfind("\n", 0, match.start()) + 1 : match.start()]):
            continue
        value = read_repr(head, match.start()).value
        if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
            yield " ".join(map(shlex.quote, value)) + "\n", match.start(), False


def _shell_regions(text: str, at: int) -> Iterator[tuple[str, int, bool]]:
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    index = regions = 0
    while index < len(lines) and regions < _MOST_REGIONS:
        line = lines[index]
        match = _START.search(line) if len(line) < 20_000 else None
        if match is None or _LOG.search(line[: match.start()]):
            index += 1
            continue
        regions += 1
        inline = next((item for item in _INLINE.finditer(line) if _START.search(item[1])), None)
        if inline is not None:
            yield inline[1] + "\n", at + starts[index], False
            index += 1
            continue
        first = _first_setting(lines, index)
        stop = _stop(lines, index)
        # Variables may be set anywhere above.
        settings = [item for item in lines[max(0, first - _MOST_LINES) : first] if _SETTING.match(item)]
        yield _script([*settings, *lines[first:stop]]), at + starts[index], False
        index = stop


def _first_setting(lines: Sequence[str], index: int) -> int:
    """The first of the assignments that stand in front of a command."""
    first = index
    while (
        first > 0
        and index - first < _MOST_LINES
        and (_SETTING.match(lines[first - 1]) or lines[first - 1].rstrip().endswith("\\"))
    ):
        first -= 1
    return first


def _stop(lines: Sequence[str], index: int) -> int:
    """Behind the last line of a command: continued with a backslash, an open quote, or by a flag all the same."""
    stop = index
    text = ""
    while stop < len(lines) and stop - index < _MOST_LINES:
        line = lines[stop]
        if stop > index and (_LOG.search(line) or not line.strip()):
            break
        text += _code(line) + "\n"
        stop += 1
        if line.rstrip().endswith(("\\", "`", "^")) or _open_quote(text):
            continue
        following = lines[stop] if stop < len(lines) else ""
        if not _FLAG_LINE.match(following):
            break
    return stop


def _open_quote(text: str) -> bool:
    return bool(text.count("'") % 2) or bool(text.replace('\\"', "").count('"') % 2)


def _code(line: str) -> str:
    """A line without the prompt in front, a log's beginning behind, and what marks it as continued."""
    bare = _LEFT_OUT.sub(" ", _PROMPT.sub("", line))
    prose = _PROSE_BEFORE.match(bare)
    if prose is not None and not _WRAPPERS.search(prose.group()) and _is_closed(prose.group()):
        bare = bare[prose.end() :]
    found = _LOG.search(bare)
    return bare[: found.start()] if found is not None and found.start() > 0 else bare


def _is_closed(text: str) -> bool:
    """False for a subshell, which a command stands in."""
    return text.count("(") == text.count(")")


def _script(lines: Sequence[str]) -> str:
    made: list[str] = []
    for line in lines:
        bare = _code(line).lstrip(">").strip()
        continued = bare.endswith(("\\", "`", "^"))
        bare = bare.rstrip("\\`^ ")
        if made and not _SETTING.match(made[-1]):
            made[-1] = f"{made[-1]} {bare}"
        elif made and continued is False and made[-1].endswith(" \\"):
            made.append(bare)
        else:
            made.append(bare)
        if continued and _SETTING.match(made[-1]):
            # An assignment in front of the program belongs to its line.
            made[-1] = made[-1] if made[-1].startswith("export ") else f"export {made[-1]}"
    return "\n".join(made) + "\n"
