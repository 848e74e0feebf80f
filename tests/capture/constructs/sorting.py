"""Lists that are looked at, or changed, by what sorts them; and sorts that fail half-way."""

from __future__ import annotations

from tests.capture.constructs.registry import breaks, case, log
from tests.capture.corpus import r


class Number:
    def __init__(self, v, then=None):
        self.v, self.then = v, then

    def __lt__(self, other):
        log((self.v, other.v))
        if self.then is not None:
            self.then()
        return self.v < other.v


class Own(list):
    pass


def fails():
    raise KeyError("no order")


def numbers(*values):
    return [Number(v, fails if v == 4 else None) for v in values]


@case
def list_is_empty_while_sorted(x):
    found, seen = [3, 1, 2], []

    def key(v):
        seen.append((len(found), list(found), v in found, bool(found)))
        return v

    found.sort(key=key)
    return found, seen, x


@case(args=lambda: ([3, 1, 2], r(2)))
def argument_is_empty_while_sorted(found, x):
    found.sort(key=lambda v: log(len(found)) or -v)
    return found, x


@case
def sorted_leaves_its_argument(x):
    found = [3, 1, 2]

    def key(v):
        found.append(v)
        return -v

    return sorted(found, key=key), found, x


@case
def sort_fails_in_a_comparison(x):
    up, down = numbers(3, 1, 5, 2, 4, 0), numbers(3, 1, 5, 2, 4, 0)
    messages = []
    for found, reverse in ((up, False), (down, True)):
        try:
            found.sort(reverse=reverse)
        except KeyError as error:
            messages.append(str(error))
    return messages, [n.v for n in up], [n.v for n in down], x


@case
def sort_fails_in_a_key(x):
    found = [3, 1, 2, 0]

    def key(v):
        return v if v != 2 else fails()

    try:
        found.sort(key=key, reverse=True)
    except KeyError as error:
        return str(error), found, x


def sorted_while(x, change, found):
    def key(v):
        change(found)
        return v

    try:
        found.sort(key=key)
    except ValueError as error:
        return str(error), found, x
    return found, x


@breaks
def list_grows_while_sorted(x):
    return sorted_while(x, lambda found: found.append(7), [3, 1, 2])


@breaks(args=lambda: (r(2), [3, 1, 2]))
def argument_grows_while_sorted(x, found):
    return sorted_while(x, lambda found: found.insert(0, 7), found)


@breaks
def own_list_grows_while_sorted(x):
    return sorted_while(x, lambda found: found.extend([7]), Own([3, 1, 2]))


@breaks
def changes_of_nothing_while_sorted(x):
    def change(found):
        found.clear()
        found[:] = []
        found.reverse()
        found.sort()

    return sorted_while(x, change, [3, 1, 2])


@breaks
def list_grows_in_a_comparison(x):
    found = [Number(3), Number(2)]
    found.append(Number(1, lambda: found.append(4)))
    try:
        found.sort()
    except ValueError as error:
        return str(error), [n.v for n in found], x
