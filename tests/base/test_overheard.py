"""Warnings are overheard and muted in one thread, and nothing else is changed by it."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch

from tinycompile.base.overheard import as_if_new, muted, overheard

pytestmark = pytest.mark.pure


def say(text: str = "said") -> None:
    warnings.warn(text)  # noqa: B028


@pytest.mark.parametrize("action", ["always", "default", "ignore", "error"])
def test_what_is_overheard_is_neither_shown_nor_raised(action: str) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        with overheard() as heard:
            say()
            with overheard() as inner:
                say("inside")
            say()
    assert [str(w.message) for w in heard] == ["said", "said"]
    assert [str(w.message) for w in inner] == ["inside"]
    assert not shown


def test_only_some_texts_are_muted_and_who_listens_hears_all() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with muted({"a"}):
            say("a")
            say("b")
            with overheard() as heard:
                say("a")
        with muted():
            say("c")
        say("a")
    assert [str(w.message) for w in shown] == ["b", "a"]
    assert [str(w.message) for w in heard] == ["a"]


def test_torchs_note_of_a_line_does_not_count() -> None:
    torch.set_warn_always(True)
    try:
        with (
            overheard() as heard,
            muted({"Tensor.mT is deprecated on 0-D tensors. This function is the identity in these cases."}),
        ):
            torch.ones(()).mT  # noqa: B018
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            with muted({str(heard[0].message).partition(" (Triggered")[0]}):
                torch.ones(()).mT  # noqa: B018
    finally:
        torch.set_warn_always(False)
    assert len(heard) == 1 and not shown


def test_other_threads_go_on_as_they_were() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with overheard() as heard, muted():
            other = threading.Thread(target=say)
            other.start()
            other.join()
    assert [str(w.message) for w in shown] == ["said"]
    assert not heard


def test_filters_come_back_when_the_last_thread_leaves() -> None:
    before, shown = list(warnings.filters), warnings.showwarning
    first, both = overheard(), threading.Barrier(2)

    def meanwhile() -> None:
        with muted():
            both.wait()
            both.wait()

    other = threading.Thread(target=meanwhile)
    first.__enter__()
    other.start()
    both.wait()
    first.__exit__(None, None, None)
    assert list(warnings.filters) != before
    both.wait()
    other.join()
    assert (list(warnings.filters), warnings.showwarning) == (before, shown)


def test_python_goes_on_knowing_what_it_has_shown() -> None:
    def once_more() -> list[warnings.WarningMessage]:
        with overheard() as heard:
            say("shown once")
        return heard

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        globals().pop("__warningregistry__", None)
        for _ in range(2):
            say("shown once")
            with as_if_new([globals()]):
                assert len(once_more()) == 1
    assert len(shown) == 1
