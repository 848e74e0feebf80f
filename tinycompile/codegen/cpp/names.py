"""C++ identifiers for the names of a nest: the same names, unless C++ or another of them has taken one."""

from __future__ import annotations

import re

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const consteval
    constexpr constinit const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern
    false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
    private protected public register reinterpret_cast requires return short signed sizeof static static_assert static_cast
    struct switch template this thread_local throw true try typedef typeid typename union unsigned using virtual void
    volatile wchar_t while xor xor_eq
"""
_OURS = "tc pointers sizes threads fault workers thread mine linux unix"
_RESERVED = frozenset((_KEYWORDS + _OURS).split())


class Names:
    """Hands out identifiers. Buffers, and the rest (values, axes, sizes), may share names in a nest; here they may not."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._made: dict[tuple[str, str], str] = {}

    def buffer(self, name: str) -> str:
        """The pointer to a buffer."""
        return self._identifier("buffer", name)

    def value(self, name: str) -> str:
        """A value, an axis or a size."""
        return self._identifier("value", name)

    def fresh(self, name: str) -> str:
        """A new identifier like ``name``."""
        clean = re.sub(r"\W", "_", name)
        clean = f"v{clean}" if clean[:1].isdigit() else clean
        count, found = 1, clean
        while found in self._taken or found in _RESERVED:
            count += 1
            found = f"{clean}_{count}"
        self._taken.add(found)
        return found

    def _identifier(self, kind: str, name: str) -> str:
        key = (kind, name)
        if key not in self._made:
            self._made[key] = self.fresh(name)
        return self._made[key]
