"""Launches in Python modules: engines made with ``LLM(...)``, and servers started as other processes."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import replace
from typing import Any, Final

from dsv4check.launchfiles.argv import servers_of_argv
from dsv4check.launchfiles.engine_words import Argument, engine_words
from dsv4check.launchfiles.python_environment import Environment
from dsv4check.launchfiles.python_places import literal_text
from dsv4check.launchfiles.python_scan import Event, Module, Scope
from dsv4check.launchfiles.python_values import Known, elements, value_of
from dsv4check.launchfiles.records import ITEM, Context, FileWord, Launch, NotUnderstood, Server, Stated
from dsv4check.launchfiles.shell import servers_of_shell
from dsv4check.launchfiles.text import Located, Span

MAX_CHARACTERS: Final = 2_000_000
_ENGINES: Final = frozenset(("LLM", "EngineArgs", "AsyncEngineArgs"))
_IGNORED_BY_LLM: Final = frozenset(("swap_space",))
"""Keywords that ``LLM`` takes and does nothing with."""
_LISTS: Final = {f"subprocess.{name}": 0 for name in ("run", "Popen", "call", "check_call", "check_output")} | {
    "os.execv": 1,
    "os.execvp": 1,
    "os.execve": 1,
    "os.execvpe": 1,
    "os.posix_spawn": 1,
    "os.posix_spawnp": 1,
}
"""Functions that take a command as one argument, and its index."""
_TEXTS: Final = frozenset(
    ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell")
)
_WORDS: Final = {"asyncio.create_subprocess_exec": 0, "os.execl": 1, "os.execlp": 1}
"""Functions that take each word as an argument, and the index of the first."""

_HINT: Final = re.compile(
    r"\b(?:LLM|(?:Async)?EngineArgs|subprocess|system|popen|exec[vl]\w*|posix_spawnp?|create_subprocess_\w+)\b"
)
"""A word without which no module starts anything: most that speak of vLLM need not be parsed."""


def python_launches(context: Context) -> list[Launch]:
    """The launches of a Python module; nothing of it is imported or run."""
    text = context.source.text
    if "vllm" not in text or not _HINT.search(text):
        return []
    if len(text) > MAX_CHARACTERS:
        context.problems.append(NotUnderstood(0, f"longer than {MAX_CHARACTERS:,} characters; it was not read"))
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        module = Module(context.source, tree)
    except SyntaxError as error:
        context.problems.append(NotUnderstood(error.lineno or 0, f"not Python 3: {error.msg}"))
        return []
    except (ValueError, RecursionError, MemoryError) as error:
        why = str(error).split("\n")[0] if isinstance(error, ValueError) else "nested too deeply"
        context.problems.append(NotUnderstood(0, f"not Python 3: {why}"))
        return []
    return _Reader(module, context).launches()


class _Reader:
    def __init__(self, module: Module, context: Context) -> None:
        self._module = module
        self._context = context
        self._environment = Environment(module)

    def launches(self) -> list[Launch]:
        found: list[Server] = []
        for event in self._module.events:
            if isinstance(event.node, ast.Assign):
                self._environment.assigned(event.node, event.scope)
            else:
                found += self._called(event.node, event)
        return [Launch("python", f"line {self._context.line(server.place.start)}", server) for server in found]

    def _called(self, node: ast.Call, event: Event) -> list[Server]:
        name = self._module.full_name(node.func)
        last = name.rpartition(".")[2]
        self._environment.called(node, name, event.scope)
        if last in _ENGINES and (name.startswith("vllm.") or (name == last and self._module.imports_all("vllm"))):
            return self._engine(node, last, event.scope)
        if name in _LISTS or name in _TEXTS or name in _WORDS:
            return self._process(node, name, event.scope)
        return []

    def _engine(self, node: ast.Call, kind: str, scope: Scope) -> list[Server]:
        """``LLM(...)`` and the classes of its arguments."""
        arguments: list[Argument] = []
        notes: list[str] = []
        unpacked = False
        if node.args:
            first = node.args[0]
            if isinstance(first, ast.Starred):
                notes.append(f"{self._module.segment(first)} is not known here: left out")
            else:
                arguments.append(self._argument("model", None, first, scope, notes))
        for keyword in node.keywords:
            if keyword.arg is None:
                more = self._unpacked(keyword.value, scope, notes)
                unpacked = unpacked or more is None
                arguments += more or []
            else:
                start = self._module.span(keyword).start
                key = Span(start, start + len(keyword.arg))
                arguments.append(self._argument(keyword.arg, key, keyword.value, scope, notes))
        if not arguments and (unpacked or not node.args):
            # `LLM(**asdict(engine_args))`: the arguments have been found where they are put together.
            return []
        if kind == "LLM":
            ignored = [argument.name for argument in arguments if argument.name in _IGNORED_BY_LLM]
            arguments = [argument for argument in arguments if argument.name not in _IGNORED_BY_LLM]
            notes += [f"{name} has no effect any more: left out" for name in ignored]
        words, more_notes = engine_words(arguments)
        return [
            Server(
                (),
                tuple(words),
                self._module.span(node.func),
                "engine",
                dict(self._environment.own),
                notes=tuple(dict.fromkeys((*notes, *more_notes))),
            )
        ]

    def _argument(self, name: str, key: Span | None, node: ast.expr, scope: Scope, notes: list[str]) -> Argument:
        known = value_of(node, scope, self._module)
        notes += known.notes
        if isinstance(known.value, (list, dict)):
            span = self._module.span(known.node or node)
            items = known.node.elts if isinstance(known.node, (ast.List, ast.Tuple)) else []
            spans = tuple(self._module.span(item) for item in items)
            return Argument(name, key, known.value, span, known.open, (), spans)
        if known.value is None or isinstance(known.value, bool):
            return Argument(name, key, known.value, self._module.span(known.node or node))
        text, span, offsets = literal_text(known, node, self._module)
        return Argument(name, key, text, span, known.open, offsets)

    def _unpacked(self, node: ast.expr, scope: Scope, notes: list[str]) -> list[Argument] | None:
        """``**settings`` with the keys of a literal; None where it is not known."""
        literal = value_of(node, scope, self._module).node
        found: list[Argument] = []
        if isinstance(literal, ast.Dict):
            for key, value in zip(literal.keys, literal.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    found.append(self._argument(key.value, self._module.span(key), value, scope, notes))
                elif key is None:
                    found += self._unpacked(value, scope, notes) or []
        elif isinstance(literal, ast.Call):
            for keyword in literal.keywords:
                name = keyword.arg or ""
                start = self._module.span(keyword).start
                key_span = Span(start, start + len(name))
                found.append(self._argument(name, key_span, keyword.value, scope, notes))
        else:
            notes.append(f"**{self._module.segment(node)} is not known here: left out")
            return None
        return found

    def _process(self, node: ast.Call, name: str, scope: Scope) -> list[Server]:
        """A server started as another process."""
        env = self._environment.of_process(node, scope)
        if name in _WORDS:
            return self._of_words(list(node.args[_WORDS[name] :]), (), env, scope)
        index = _LISTS.get(name, 0)
        command = node.args[index] if len(node.args) > index else None
        command = command or next((keyword.value for keyword in node.keywords if keyword.arg == "args"), None)
        if command is None:
            return []
        command = _joined(command, self._module) or command
        split = _split_text(command, self._module)
        listed = None if split is not None else elements(command, scope, self._module)
        if listed is not None:
            return self._of_words(listed[0], listed[1], env, scope)
        known = value_of(split or command, scope, self._module)
        if not isinstance(known.value, str) or "vllm" not in known.value:
            return []
        text, span, offsets = literal_text(known, command, self._module)
        places = [*offsets, offsets[-1] + 1] if offsets else [span.start] * len(text) + [span.stop]
        servers = servers_of_shell(Located(text, places), env, self._context)
        return [_with(server, known.open, known.notes) for server in servers]

    def _of_words(
        self, parts: list[ast.expr], notes: tuple[str, ...], env: dict[str, Stated], scope: Scope
    ) -> list[Server]:
        words: list[FileWord] = []
        for part in parts:
            known = value_of(part, scope, self._module)
            if isinstance(known.value, (list, dict)) or known.value is None:
                text = self._module.segment(part)
                known = Known(text, (text,))
            notes += known.notes
            text, span, offsets = literal_text(known, part, self._module)
            words.append(FileWord(text, span, ITEM, known.open, offsets))
        return [_with(server, (), notes) for server in servers_of_argv(words, env, self._context)]


def _joined(node: ast.expr, module: Module) -> ast.expr | None:
    """The list in ``" ".join(command)`` or ``shlex.join(command)``, which a shell takes apart again."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or not isinstance(node.func, ast.Attribute):
        return None
    blank = isinstance(node.func.value, ast.Constant) and node.func.value.value == " "
    if node.func.attr != "join" or not (blank or module.full_name(node.func) == "shlex.join"):
        return None
    return node.args[0]


def _split_text(node: ast.expr, module: Module) -> ast.expr | None:
    """The text in ``shlex.split(text)`` and ``text.split()``."""
    match node:
        case ast.Call(args=[text]) if module.full_name(node.func) == "shlex.split":
            return text
        case ast.Call(func=ast.Attribute(value=text, attr="split"), args=[]):
            return text
    return None


def _with(server: Server, unknown: tuple[str, ...], notes: tuple[str, ...]) -> Server:
    """Mark the words that hold an expression whose value is not known."""
    words: list[Any] = [
        replace(word, open=tuple(dict.fromkeys((*word.open, *(item for item in unknown if item in word.text)))))
        for word in server.words
    ]
    return replace(server, words=tuple(words), notes=tuple(dict.fromkeys((*server.notes, *notes))))
