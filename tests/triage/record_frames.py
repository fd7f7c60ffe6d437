"""Records where the releases of vLLM log what, and the lines of the frames that tracebacks of each stage go through.

    python -m tests.triage.record_frames FOLDER

FOLDER holds each release's package as ``<release>/vllm``. The tests read only what was recorded.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.triage.log_stacks import FRAMES, MESSAGES, PlaceOfFrame
from tests.triage.log_table import TABLE


@cache
def parsed(path: Path) -> tuple[ast.Module, list[str]]:
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), text.splitlines()


def record(folder: Path) -> dict[str, Any]:
    releases = sorted(
        (path.name for path in folder.iterdir() if (path / "vllm").is_dir()),
        key=lambda name: tuple(int(part) for part in name.split(".")),
    )
    messages: dict[str, dict[str, list[Any]]] = {}
    frames: dict[str, list[dict[str, Any]]] = {}
    for release in releases:
        package = folder / release / "vllm"
        parsed.cache_clear()
        for name, (paths, text) in MESSAGES.items():
            found = find_message(package, paths, text)
            if found:
                messages.setdefault(name, {})[release] = found
        for name, places in FRAMES.items():
            place = next((item for item in (find_frame(package, place) for place in places) if item), None)
            if place is not None:
                add_frame(frames.setdefault(name, []), release, *place)
    return {"releases": releases, "messages": messages, "frames": frames}


def find_message(package: Path, paths: tuple[str, ...], text: str) -> list[Any] | None:
    """File name and line of the call that logs the text."""
    for pattern in paths:
        for path in sorted(package.glob(pattern)):
            tree, _lines = parsed(path)
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and is_logging(node) and text in ast.unparse(node):
                    return [path.name, node.lineno]
    return None


def is_logging(node: ast.Call) -> bool:
    name = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    return isinstance(name, ast.Name) and name.id in ("logger", "lgr", "log_fn")


def add_frame(known: list[dict[str, Any]], release: str, path: str, function: str, code: str, line: int) -> None:
    for item in known:
        if (item["path"], item["function"], item["code"]) == (path, function, code):
            item["lines"][release] = line
            return
    known.append({"path": path, "function": function, "code": code, "lines": {release: line}})


def find_frame(package: Path, place: PlaceOfFrame) -> tuple[str, str, str, int] | None:
    """Path, function, source line and its number of the first line in that function that the expression is found in."""
    path = package / place.path
    if not path.is_file():
        return None
    tree, lines = parsed(path)
    for node in functions(tree, place.owner, place.function):
        for number in range(node.lineno + 1, (node.end_lineno or node.lineno) + 1):
            line = lines[number - 1]
            found = re.search(place.code, "\n".join(lines[number - 1 : number + 1]), re.MULTILINE)
            if found and found.start() <= len(line):
                name = "<lambda>" if line.lstrip().startswith("lambda") else innermost(node, number)
                return f"vllm/{place.path}", name, line.strip(), number
    return None


def innermost(function: ast.FunctionDef | ast.AsyncFunctionDef, number: int) -> str:
    """The name a traceback shows for the line: that of the function defined inside, where it lies in one."""
    name = function.name
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno < number <= (node.end_lineno or 0):
            name = node.name
    return name


def functions(tree: ast.Module, owner: str, name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in tree.body:
        if not owner and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            yield node
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name == name:
                    yield item


def missing(table: dict[str, Any]) -> list[str]:
    found = []
    for kind, wanted in (("messages", MESSAGES), ("frames", FRAMES)):
        for name in wanted:
            known = table[kind].get(name, {})
            have = set(known) if kind == "messages" else {release for item in known for release in item["lines"]}
            lacking = [release for release in table["releases"] if release not in have]
            if lacking:
                found.append(f"{kind} {name}: not in {', '.join(lacking)}")
    return found


if __name__ == "__main__":
    written = record(Path(sys.argv[1]))
    TABLE.write_text(json.dumps(written, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(missing(written)))
