"""The configuration file: where it is found, how it is read, and what is said about one that is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsv4check.errors import InputError
from dsv4check.gate.reading import read_source
from dsv4check.gate.records import FileProblem
from dsv4check.records import dataclass

if TYPE_CHECKING:
    from dsv4check.gate.settings_schema import SettingsTable

OWN_NAME: Final = ".dsv4check.toml"
PROJECT_NAME: Final = "pyproject.toml"
TABLE: Final = "tool.dsv4check"
MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that holds a configuration."""

    path: Path
    shown: str
    text: str
    table: dict[str, Any]
    notes: tuple[str, ...] = ()


def find_config(start: Path) -> ConfigFile | None:
    """The nearest configuration at or above a folder, up to the root of the repository."""
    for folder in (start, *start.parents):
        own, project = folder / OWN_NAME, folder / PROJECT_NAME
        named = os.path.lexists(own)
        there = None
        if os.path.isfile(project):
            shown = _shown(project, start)
            # With a file of our own beside it, a broken one is somebody else's matter.
            there = _project_table(project, shown, needed=False) if not named else _quietly(project, shown)
        if named:
            found = read_config(own, _shown(own, start))
            if there is None:
                return found
            note = f"{found.shown}: this file was used; [{TABLE}] of {there.shown} beside it was not"
            return ConfigFile(found.path, found.shown, found.text, found.table, (note,))
        if there is not None:
            return there
        if os.path.lexists(folder / ".git"):
            break
    return None


def read_config(path: Path, shown: str) -> ConfigFile:
    """One configuration file; of ``pyproject.toml`` the table that is ours."""
    path = Path(os.path.abspath(path))
    if path.name == PROJECT_NAME:
        found = _project_table(path, shown, needed=True)
        assert found is not None
        return found
    text, table = _parsed(path, shown)
    return ConfigFile(path, shown, text, table)


def _project_table(path: Path, shown: str, *, needed: bool) -> ConfigFile | None:
    text, content = _parsed(path, shown)
    tool = content.get("tool")
    if not isinstance(tool, dict) or "dsv4check" not in tool:
        if needed:
            raise InputError(f"{shown}: no table [{TABLE}] in it")
        return None
    if not isinstance(tool["dsv4check"], dict):
        raise InputError(f"{shown}: {TABLE}: expected a table, found {_kind(tool['dsv4check'])}")
    return ConfigFile(path, shown, text, tool["dsv4check"])


def _quietly(path: Path, shown: str) -> ConfigFile | None:
    try:
        return _project_table(path, shown, needed=False)
    except InputError:
        return None


def _parsed(path: Path, shown: str) -> tuple[str, dict[str, Any]]:
    import tomllib

    source = read_source(path, shown, limit=MAX_BYTES)
    if isinstance(source, FileProblem):
        raise InputError(f"{shown}: {source.why}; expected a configuration file")
    try:
        return source.text, tomllib.loads(source.text)
    except RecursionError:
        raise InputError(f"{shown}: nested too deeply for a configuration file") from None
    except ValueError as error:
        said = str(error)
        place = re.search(r" \(at line (\d+), column (\d+)\)$", said)
        line = place[1] if place else str(source.text.count("\n") + 1)
        what = said[: place.start()] if place else said.removesuffix(" (at end of document)")
        raise InputError(f"{shown}: line {line}: not TOML: {what}") from None


def validated(found: ConfigFile) -> SettingsTable:
    """The table with every key known and every value of its type; InputError names the first that is not."""
    from pydantic import ValidationError

    from dsv4check.gate.settings_schema import SettingsTable

    try:
        table = SettingsTable.model_validate(found.table)
    except ValidationError as error:
        # A key that is spelled wrongly explains a missing one.
        first = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
        raise InputError(f"{found.shown}: {_complaint(first)}") from None
    for key, globs in (
        ("exclude", table.exclude),
        *(("launch.path", item.path) for item in table.launch),
        *(("ignore.path", item.path) for item in table.ignore),
    ):
        negated = next((glob for glob in globs if glob.startswith("!")), None)
        if negated is not None:
            raise InputError(f"{found.shown}: {key}: {negated!r} is negated; globs only add files here, [!] takes one")
    return table


def _complaint(error: Any) -> str:
    """One line about one thing that is wrong: the key, what was expected, what is there."""
    from difflib import get_close_matches

    from dsv4check.gate.settings_schema import TABLES, known_keys

    where = tuple(error["loc"])
    table = str(where[0]) if len(where) > 1 and where[0] in TABLES and where[0] != "" else ""
    variable = "env" in where[:-2] and where[-1] != "[key]"
    # The last part is pydantic's name of one of the types that a variable may have.
    parts = where[:-1] if variable else where
    key = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    if error["type"] == "extra_forbidden":
        name = str(where[-1])
        if name == "tool" and not table:
            return f"unknown key 'tool'; in this file the keys of [{TABLE}] stand at the top level"
        close = get_close_matches(name, known_keys(table), n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(known_keys(table))}"
        place = key.rpartition(".")[0]
        return f"{place}{': ' if place else ''}unknown key {name!r}; {hint}"
    if where[-1] == "[key]":
        return f"{where[-3]}: a name in it is empty"
    if error["type"] == "missing":
        return f"{key}: missing"
    expected = "text, a whole number, true or false" if variable else _expected(error, str(where[-1]))
    return f"{key}: expected {expected}, found {_kind(error['input'])}"


def _expected(error: Any, key: str) -> str:
    kind, context = error["type"], error.get("ctx", {})
    texts = {
        "string_type": "text (in quotes)",
        "string_too_short": "text that is not empty",
        "string_pattern_mismatch": "text that is not blank",
        "int_type": "a whole number",
        "float_type": "a number",
        "finite_number": "a number",
        "bool_type": "true or false",
        "list_type": "a glob or a list of globs" if key == "path" else "a list",
        "too_short": "at least one entry",
        "dict_type": "a table",
        "model_type": "a table",
        "greater_than_equal": f"at least {context.get('ge')}",
        "less_than_equal": f"at most {context.get('le')}",
        "greater_than": f"more than {context.get('gt'):g}" if "gt" in context else "more",
        "literal_error": f"one of {context.get('expected', '')}",
    }
    return texts.get(kind, str(error["msg"]))


def _kind(value: object) -> str:
    """What a value is, for people."""
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"{value[:40]!r}..."
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value}"
    if isinstance(value, int):
        # Python refuses to write out numbers of many digits.
        return f"{value}" if abs(value) < 10**15 else "a huge number"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "a table" if isinstance(value, dict) else f"a {type(value).__name__}"


def ignore_lines(found: ConfigFile, count: int) -> list[int]:
    """Lines on which the ``[[ignore]]`` tables begin; 1 where that cannot be told (inline tables)."""
    header = re.compile(
        r"^[ \t]*\[\[[ \t]*(?:tool[ \t]*\.[ \t]*dsv4check[ \t]*\.[ \t]*)?ignore[ \t]*\]\]", re.MULTILINE
    )
    lines = [found.text.count("\n", 0, place.start()) + 1 for place in header.finditer(found.text)]
    return lines if len(lines) == count else [1] * count


def _shown(path: Path, start: Path) -> str:
    """A configuration as it is named in messages: from the current folder, also where it lies above."""
    return Path(os.path.relpath(path, start)).as_posix()
