"""How much of Python's stack is left: capture takes several frames for one of the program's, which must not miss them."""

from __future__ import annotations

import sys

_KEPT = 250  # frames for what capture and the stages behind it do besides following calls


def has_room() -> bool:
    """Whether so much is left of what ``sys.setrecursionlimit`` allows that a call may still be followed."""
    try:
        sys._getframe(max(sys.getrecursionlimit() - _KEPT, 1))
    except ValueError:  # there are not so many frames
        return True
    return False
