"""Files of environment variables that another file names: ``--env-file``, ``env_file:``, ``EnvironmentFile=``."""

from __future__ import annotations

from dsv4check.inputs.server_program import assignment
from dsv4check.launchfiles.records import Context, Stated
from dsv4check.launchfiles.text import Span


def env_of_file(path: str, span: Span, context: Context) -> dict[str, Stated]:
    """The variables of such a file, stated where it is named; nothing when it is not at hand."""
    content = context.neighbour(path)
    return {} if content is None else {name: Stated(value, span) for name, value in read_env(content).items()}


def read_env(content: str) -> dict[str, str]:
    """``NAME=value`` lines; comments, ``export`` and one pair of quotes around a value are taken off."""
    found = {}
    for line in content.splitlines():
        pair = assignment(line.strip().removeprefix("export ").strip())
        if pair is None:
            continue
        value = pair[1].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        elif " #" in value:
            value = value.partition(" #")[0].rstrip()
        found[pair[0]] = value
    return found
