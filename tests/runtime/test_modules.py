"""Texts become modules once, whoever asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tinycompile.runtime.modules import load_module

pytestmark = pytest.mark.pure


def test_threads_that_ask_at_once_get_the_same_whole_module() -> None:
    for turn in range(20):
        text = "\n".join(f"x{i} = {i}" for i in range(2000)) + f"\nlast = {turn}\n"
        with ThreadPoolExecutor(8) as pool:
            modules = list(pool.map(lambda _: load_module(text, f"many{turn}"), range(8)))
        assert {id(m) for m in modules} == {id(modules[0])}
        assert modules[0].last == turn
