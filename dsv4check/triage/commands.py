"""The command a report shows: fenced blocks, compose files, manifests, shell lines between prose and log lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from dsv4check.deployment import Command, Token
from dsv4check.errors import InputError
from dsv4check.inputs.checkpoint import PublishedModel
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.launchfiles.dynamo import engine_server
from dsv4check.launchfiles.extract import MARKS, extract
from dsv4check.launchfiles.records import Context, Launch, Server
from dsv4check.launchfiles.text import SourceText
from dsv4check.problems import Origin
from dsv4check.records import dataclass, field
from dsv4check.releases.flag_table import load_flag_table
from dsv4check.releases.timeline import newest_release
from dsv4check.triage.model_hint import published_like
from dsv4check.triage.records import LogLine, LogReading
from dsv4check.triage.version_banner import place

_FENCE: Final = re.compile(
    r"^[ \t>]*(?:```|~~~)[^\n]*\n(?P<body>.*?)(?:^[ \t>]*(?:```|~~~)|\Z)", re.MULTILINE | re.DOTALL
)
_YAML: Final = re.compile(r"^[ \t]*(?:apiVersion|services|image|kind):", re.MULTILINE)
_UNIT: Final = re.compile(r"^\[(?:Unit|Service)\][ \t]*\n(?:(?!```)[^\n]*\n){0,200}?(?=```|\Z|\n\n\n)", re.MULTILINE)
_START: Final = re.compile(
    r"(?:\bvllm serve\b|-m vllm\.entrypoints|\b(?:docker|podman|nerdctl)(?: container)? run\b|vllm/vllm-openai\S* )"
)
_PROSE_BEFORE: Final = re.compile(
    r"^[^;&|'\"(){}=]{1,4000}?\s(?=(?:[A-Z][A-Z0-9_]+=\S+\s+)*(?:\S*/)?(?:vllm serve\s|python[\d.]*\s+-m\s+vllm\.))"
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
_PLAIN: Final = re.compile(r"[A-Za-z]{1,20}[,.;:]?")
_SENTENCE: Final = 3
"""So many plain words behind each other are no values of a flag."""
_MOST_LINES: Final = 120
_MOST_REGIONS: Final = 60
_MOST_TEXT: Final = 200_000


@dataclass(frozen=True, slots=True)
class ShownLaunch:
    """One launch in a report."""

    words: tuple[str, ...]
    """Model and flags; a word whose value the text does not state is left out with its flag."""
    env: dict[str, str] = field(default_factory=dict)
    image: str | None = None
    gpu: str | None = None
    gpus: str | None = None
    nodes: str | None = None
    line: LogLine | None = None
    notes: tuple[str, ...] = ()
    model: str | None = None
    entrypoint: str = "serve"

    @property
    def known(self) -> PublishedModel | None:
        """The DeepSeek-V4 checkpoint that its words name."""
        return published_like([self.model or "", *self.words])


def shown_launches(reading: LogReading) -> tuple[ShownLaunch, ...]:
    """The launches in the text around a log, in order. Never raises."""
    found: list[ShownLaunch] = []
    for text, at, whole in _regions(reading.head[:_MOST_TEXT]):
        source = SourceText("-", text)
        if not MARKS.search(text):
            continue
        try:
            launches = extract(Context(source)).launches
        except (ValueError, RecursionError):
            continue
        offset = at if whole else None
        for launch in launches:
            shown = _shown(launch, reading, at if offset is None else at + launch.server.place.start)
            if shown is not None and not any(shown.words == other.words for other in found):
                found.append(shown)
    return tuple(found)


def _regions(head: str) -> Iterator[tuple[str, int, bool]]:
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
    bare = _PROMPT.sub("", line)
    prose = _PROSE_BEFORE.match(bare)
    if prose is not None and not _WRAPPERS.search(prose.group()):
        bare = bare[prose.end() :]
    found = _LOG.search(bare)
    return bare[: found.start()] if found is not None and found.start() > 0 else bare


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


def _shown(launch: Launch, reading: LogReading, at: int) -> ShownLaunch | None:
    server = engine_server(launch)
    if server.other or server.entrypoint not in ("serve", "api_server", "engine"):
        return None
    if not _is_meant(server):
        return None
    words, notes = _known_words(server)
    image = launch.image or server.image
    stated = launch.gpus or server.gpus
    return ShownLaunch(
        words=words,
        env={name: item.value for name, item in server.env.items() if "$" not in item.value},
        image=image.value if image is not None else None,
        gpu=launch.gpu.value if launch.gpu is not None else None,
        gpus=stated.value if stated is not None else None,
        nodes=launch.nodes.value if launch.nodes is not None else None,
        line=place(reading, at),
        notes=(*server.notes, *notes),
        model=_model(words, server.entrypoint),
        entrypoint=server.entrypoint,
    )


def _is_meant(server: Server) -> bool:
    """False for a sentence about ``vllm serve``."""
    return any(word.open or word.text.startswith("-") or "/" in word.text for word in server.words)


def _known_words(server: Server) -> tuple[tuple[str, ...], list[str]]:
    kept: list[str] = []
    notes = []
    for word in server.words:
        if not word.open:
            kept.append(word.text)
            continue
        flag = kept.pop() if kept and kept[-1].startswith("--") and not word.text.startswith("-") else word.text
        notes.append(f"{flag.partition('=')[0]}: its value is not in the text ({', '.join(word.open)}), left out")
    return _without_sentence(kept), notes


def _without_sentence(words: list[str]) -> tuple[str, ...]:
    """The words up to where a sentence goes on behind the command: several plain words in a row."""
    first = 0
    while first < len(words):
        stop = first
        while stop < len(words) and not words[stop].startswith("-"):
            stop += 1
        if sum(bool(_PLAIN.fullmatch(word)) for word in words[first + 1 : stop]) >= _SENTENCE:
            return (*words[:first], words[first].rstrip(",;.")) if first else tuple(words[:1])
        first = stop + 1
    return tuple(words)


def _model(words: Sequence[str], entrypoint: str) -> str | None:
    for index, word in enumerate(words):
        if word == "--model" and index + 1 < len(words):
            return words[index + 1]
        if word.startswith("--model="):
            return word.partition("=")[2]
    if entrypoint == "api_server":
        return None
    if words and not words[0].startswith("-"):
        return words[0]
    # A model behind the flags: which word it is only the parser can tell.
    command = Command(("vllm", "serve"), tuple(Token(word, Origin("flag", word)) for word in words))
    try:
        return parse_flags(command, load_flag_table(newest_release()), read_file=_no_file).model
    except InputError:
        return None


def _no_file(path: str) -> str:
    raise OSError(f"{path} lies on another machine")
