"""Reading flags in tests."""

from __future__ import annotations

from dsv4check.deployment import Command, ServeFlags, Token
from dsv4check.inputs.flags.parser import parse_flags
from dsv4check.problems import Origin, Problem
from dsv4check.releases.flag_table import load_flag_table


def launch(*words: str, program: tuple[str, ...] = ("vllm", "serve"), entrypoint: str = "serve") -> Command:
    return Command(program, tuple(Token(word, Origin("flag", word)) for word in words), {}, entrypoint)


def read(release: str, *words: str, files: dict[str, str] | None = None, **how: object) -> ServeFlags:
    def read_file(path: str) -> str:
        if files is None or path not in files:
            raise FileNotFoundError(path)
        return files[path]

    return parse_flags(launch(*words, **how), load_flag_table(release), read_file=read_file)  # type: ignore[arg-type]


def codes(flags: ServeFlags) -> list[str]:
    return [problem.code for problem in flags.problems]


def problem(flags: ServeFlags, code: str) -> Problem:
    found = [item for item in flags.problems if item.code == code]
    assert len(found) == 1, codes(flags)
    return found[0]
