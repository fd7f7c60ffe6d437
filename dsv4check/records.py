"""Dataclasses that are cheap to define.

The standard decorator compiles up to six methods for every class, which for the records of this package was a
quarter of a cold start. Here only ``__init__`` is compiled; the other methods are shared functions that do the
same. Type checkers see the standard decorator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass, field
else:
    from dataclasses import FrozenInstanceError, field
    from dataclasses import dataclass as _dataclass

    def dataclass(*, frozen=False, slots=True, eq=True):
        """``dataclasses.dataclass`` for classes with slots."""

        def wrap(cls):
            made = _dataclass(slots=slots, repr=False, eq=False)(cls)
            made.__repr__ = _repr
            if frozen:
                made.__setattr__ = _set_once
                made.__delattr__ = _refuse_delete
            if eq:
                made.__eq__ = _eq
                made.__hash__ = _hash if frozen else None
            return made

        return wrap

    def _set_once(self, name, value):
        # __init__ fills each slot once; a slot that is filled already must stay as it is.
        if hasattr(self, name):
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def _refuse_delete(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")

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
