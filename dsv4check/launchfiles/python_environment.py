"""The environment that a Python module sets, for itself and for the processes it starts."""

from __future__ import annotations

import ast

from dsv4check.launchfiles.python_places import literal_text
from dsv4check.launchfiles.python_scan import Module, Scope
from dsv4check.launchfiles.python_values import value_of
from dsv4check.launchfiles.records import Stated


class Environment:
    """What is set up to a place in the module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.own: dict[str, Stated] = {}
        """The module's own environment, which engines and processes get."""
        self._copies: dict[str, dict[str, Stated]] = {}

    def assigned(self, node: ast.Assign, scope: Scope) -> None:
        """``os.environ["X"] = "1"``, also on a copy of it."""
        target = node.targets[0]
        if not isinstance(target, ast.Subscript):
            return
        if self._module.full_name(target.value) == "os.environ":
            self._set(self.own, target.slice, node.value, scope)
        elif isinstance(target.value, ast.Name):
            self._set(self._copies.setdefault(target.value.id, {}), target.slice, node.value, scope)

    def _set(self, env: dict[str, Stated], name: ast.expr, value: ast.expr, scope: Scope) -> None:
        key = value_of(name, scope, self._module)
        known = value_of(value, scope, self._module)
        if isinstance(key.value, str) and not key.open and isinstance(known.value, (str, int, float)):
            text, span, _offsets = literal_text(known, value, self._module)
            env[key.value] = Stated(text, span)

    def called(self, node: ast.Call, name: str, scope: Scope) -> None:
        """``os.environ.setdefault(...)``, ``os.environ.update(...)``, ``os.putenv(...)``."""
        if name in ("os.environ.setdefault", "os.putenv") and len(node.args) == 2:
            self._set(self.own, node.args[0], node.args[1], scope)
        elif name == "os.environ.update":
            self._update(self.own, node.args, node.keywords, scope)

    def _update(
        self, env: dict[str, Stated], arguments: list[ast.expr], keywords: list[ast.keyword], scope: Scope
    ) -> None:
        for argument in arguments:
            if isinstance(argument, ast.Dict):
                for key, value in zip(argument.keys, argument.values, strict=True):
                    if key is not None:
                        self._set(env, key, value, scope)
        for keyword in keywords:
            if keyword.arg is not None:
                self._set(env, ast.Constant(keyword.arg), keyword.value, scope)

    def of_process(self, node: ast.Call, scope: Scope) -> dict[str, Stated]:
        """The environment of a process: the module's own and what ``env=`` adds."""
        found: dict[str, Stated] = {}
        given = next((keyword.value for keyword in node.keywords if keyword.arg == "env"), None)
        name = given.id if isinstance(given, ast.Name) else ""
        owner = scope.owner(name)
        if owner is not None:
            given = owner.names[name]
        if isinstance(given, ast.Dict):
            self._update(found, [given], [], scope)
        elif isinstance(given, ast.Call):
            self._update(found, [*given.args], given.keywords, scope)
        return {**self.own, **found, **self._copies.get(name, {})}
