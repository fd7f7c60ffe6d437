"""What a unit file has said so far: the state its settings are read into."""

from __future__ import annotations

from dsv4check.inputs.server_program import assignment
from dsv4check.launchfiles.env_files import env_of_file
from dsv4check.launchfiles.records import SHELL, Context, FileWord, NotUnderstood, Stated
from dsv4check.launchfiles.systemd_text import Setting, UnitWord, words_of
from dsv4check.launchfiles.text import Span
from dsv4check.records import dataclass, field


@dataclass(slots=True)
class Unit:
    """What the settings say."""

    env: dict[str, Stated] = field(default_factory=dict)
    from_files: dict[str, Stated] = field(default_factory=dict)
    unset: set[str] = field(default_factory=set)
    commands: list[Setting] = field(default_factory=list)
    image: Stated | None = None
    head: Setting | None = None
    command: Setting | None = None
    entrypoint: Setting | None = None
    mounts: dict[str, str] = field(default_factory=dict)
    devices: list[Stated] = field(default_factory=list)
    gpus: Stated | None = None

    def environment(self) -> dict[str, Stated]:
        """The environment of the process: files win over the settings."""
        both = {**self.env, **self.from_files}
        return {
            name: stated
            for name, stated in both.items()
            if name not in self.unset and f"{name}={stated.value}" not in self.unset
        }


def environment_setting(unit: Unit, setting: Setting, context: Context) -> None:
    """``Environment=``: several assignments; an empty one forgets the earlier."""
    if not setting.value.text:
        unit.env.clear()
    for word in words_of_setting(setting, context):
        pair = assignment(word.text)
        if pair is not None:
            places = word.offsets[len(word.text) - len(pair[1]) :]
            unit.env[pair[0]] = Stated(pair[1], Span(places[0], places[-1] + 1) if places else word.span)


def environment_file(unit: Unit, setting: Setting, context: Context) -> None:
    """``EnvironmentFile=``; an empty one forgets the earlier."""
    path = setting.value.text.removeprefix("-").strip("\"'")
    if path:
        unit.from_files.update(env_of_file(path, setting.value.span(), context))
    else:
        unit.from_files.clear()


def words_of_setting(setting: Setting, context: Context) -> list[UnitWord]:
    """The words of a setting; a quote that is never closed is a problem, and gives none."""
    words = words_of(setting.value)
    if words is None:
        line = context.line(setting.key.start)
        context.problems.append(NotUnderstood(line, f"{setting.name}: a quote is never closed; it was not read"))
    return words or []


def plain_word(word: UnitWord) -> FileWord:
    """A word as the process gets it, where no variable is replaced."""
    return FileWord(word.text, word.span, SHELL, word.open, word.offsets)
