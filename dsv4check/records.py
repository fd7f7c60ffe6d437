"""Dataclasses that are cheap to define and to create.

The standard decorator compiles up to six methods for every class, which for the records of this package was a
quarter of a cold start, and a frozen one pays for every field it sets. Here only ``__init__`` is compiled, and
it fills the slots directly; the other methods are shared functions that do the same as the standard ones. Type
checkers see the standard decorator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass, field
else:
    from dataclasses import MISSING, FrozenInstanceError, field
    from dataclasses import dataclass as _dataclass

    def dataclass(*, frozen=False, slots=True, eq=True):
        """``dataclasses.dataclass`` for classes with slots and without base classes."""

        def wrap(cls):
            made = _dataclass(slots=True, init=False, repr=False, eq=False)(cls)
            made.__init__ = _init_of(made)
            made.__repr__ = _repr
            made.__reduce__ = _reduce
            if frozen:
                made.__setattr__ = _refuse_set
                made.__delattr__ = _refuse_delete
            if eq:
                made.__eq__ = _eq
                made.__hash__ = _hash if frozen else None
            return made

        return wrap

    def _init_of(cls):
        """An ``__init__`` that fills the slots through their descriptors (so that a frozen class can be filled)."""
        names, parameters, lines = {"_missing": MISSING}, [], []
        for item in cls.__dataclass_fields__.values():
            name = item.name
            names[f"_set_{name}"] = getattr(cls, name).__set__
            value = name
            if item.default is not MISSING:
                names[f"_default_{name}"] = item.default
                parameters.append(f"{name}=_default_{name}")
            elif item.default_factory is not MISSING:
                names[f"_make_{name}"] = item.default_factory
                parameters.append(f"{name}=_missing")
                value = f"_make_{name}() if {name} is _missing else {name}"
            else:
                parameters.append(name)
            lines.append(f" _set_{name}(self, {value})")
        exec(f"def __init__(self, {', '.join(parameters)}):\n" + "\n".join(lines or [" pass"]), names)
        return names["__init__"]

    def _refuse_set(self, name, value):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refuse_delete(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _reduce(self):
        """Records travel between processes; a frozen one cannot be filled attribute by attribute."""
        return type(self), _values(self)

    def _values(self):
        return tuple([getattr(self, name) for name in self.__dataclass_fields__])

    def _repr(self):
        inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
        return f"{type(self).__qualname__}({inner})"

    def _eq(self, other):
        return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented

    def _hash(self):
        return hash(_values(self))


__all__ = ["dataclass", "field"]
