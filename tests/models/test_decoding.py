"""Generation with a KV cache, token by token, written in place; sizes that change from call to call."""

from __future__ import annotations

import copy

import pytest
import torch

import tinycompile
from tests.models.gpt import GPT, GPTConfig
from tests.models.llama import Llama, ModelArgs

pytestmark = pytest.mark.cpu


def generate(model, call, prompt, length):
    """Greedy decoding into one buffer of tokens: the tokens, every step's logits, the caches."""
    caches = model.empty_caches(prompt.shape[0])
    tokens = torch.zeros(prompt.shape[0], length, dtype=torch.long)
    tokens[:, : prompt.shape[1]] = prompt
    logits, before = [], 0
    with torch.no_grad():
        for now in range(prompt.shape[1], length):
            logits.append(call(tokens[:, before:now], before, caches)[:, -1])
            tokens[:, now] = logits[-1].argmax(-1)
            before = now
    return tokens, logits, caches


def test_llama_decodes_with_a_cache_written_in_place() -> None:
    model = Llama(ModelArgs()).eval()
    compiled = tinycompile.compile(model, fullgraph=True)
    prompt = torch.randint(1, 96, (2, 7))
    tokens, logits, caches = generate(model, compiled, prompt, 57)
    expected, expected_logits, expected_caches = generate(model, model, prompt, 57)
    assert torch.equal(tokens, expected)
    for got, want in zip(logits, expected_logits, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    for pair, want in zip(caches, expected_caches, strict=True):
        for a, b in zip(pair, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    # The prompt, the first token, then each after it, once for tokens that begin at a multiple of 16 bytes and once for others.
    assert compiled.compiled.cache_info()["entries"] <= 4
    assert "slice_scatter(" not in compiled.compiled.source("optimized")


def test_only_the_written_slice_is_stored() -> None:
    """A slice of a large input is updated where it is."""
    cache, new = torch.zeros(4, 1 << 12, 8), torch.randn(4, 1, 8)

    @tinycompile(fullgraph=True)
    def write(cache, new, at: int):
        cache[:, at : at + 1] = new * 2
        return new.sum()

    for at in range(5, 9):
        write(cache, new, at)
        assert torch.equal(cache[:, at : at + 1], new * 2)
    assert cache.count_nonzero() == 4 * new.numel()
    for kernel in write.kernels:
        assert kernel.bytes_moved < 1 << 12, kernel.source
    assert "copy" not in write.source("wrapper"), write.source("wrapper")


@pytest.mark.parametrize("how", ["marked", "seen", "asked"])
def test_one_compile_of_a_gpt_serves_fifty_sizes(how: str) -> None:
    model = GPT(GPTConfig()).eval()
    eager = copy.deepcopy(model)
    compiled = tinycompile.compile(model, fullgraph=True, dynamic=True if how == "asked" else None)
    sizes = [(2 + i % 10, 3 + i) for i in range(50)]
    with torch.no_grad():
        for shape in sizes:
            ids, targets = torch.randint(0, 96, shape), torch.randint(0, 96, shape)
            if how == "marked":
                for t in (ids, targets):
                    tinycompile.mark_dynamic(t, 0)
                    tinycompile.mark_dynamic(t, 1)
            logits, loss = compiled(ids, targets)
            want, want_loss = eager(ids, targets)
            torch.testing.assert_close(logits, want, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(loss, want_loss, rtol=1e-5, atol=1e-5)
    assert compiled.compiled.cache_info()["entries"] <= (2 if how == "seen" else 1)


def test_a_training_gpt_serves_many_sizes() -> None:
    model = GPT(GPTConfig())
    eager = copy.deepcopy(model)
    compiled = tinycompile.compile(model, fullgraph=True, dynamic=True)
    for shape in [(2, 5), (3, 17), (7, 64), (2, 9)]:
        ids, targets = torch.randint(0, 96, shape), torch.randint(0, 96, shape)
        compiled(ids, targets)[1].backward()
        eager(ids, targets)[1].backward()
        for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
            p.grad = q.grad = None
    assert compiled.compiled.cache_info()["entries"] == 1
