"""Functions and small models whose gradients are compared with eager's, with inputs in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def mlp(x, w1, b1, w2, b2):
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def layer_norm(x, w, b):
    return F.layer_norm(x, (x.shape[-1],), w, b)


def rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def attention_by_hand(q, k, v):
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def cross_entropy(x, t):
    return F.cross_entropy(x, t)


def swiglu(a, b):
    return F.silu(a) * b


def several_outputs(x, y):
    h = x * y
    return h.sum(), h.t(), h.argmax(-1), torch.tanh(h), x.detach() + 1


def broadcast(x, y, z):
    return (x + y) * z - y / (z * z + 1)


def views(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1).transpose(0, 1).reshape(-1).unflatten(0, (2, -1)) * 3


def indexing(w, i):
    return w[i] * 2 + F.embedding(i, w), w[1:, ::2].sum(), w.gather(0, i[:1, None].expand(1, w.shape[1]))


def reductions(x):
    var, mean = torch.var_mean(x, dim=0)
    return var, mean, x.amax(-1), x.prod(0), torch.logsumexp(x, -1), x.norm(dim=1), x.cumsum(0)


def pointwise(x):
    return torch.sin(x) * torch.exp(-x.abs()) + torch.where(x > 0, x.sqrt(), x * x).nan_to_num() + x.clamp(-0.5, 0.5).pow(3)


def no_grad_inside(x, w):
    with torch.no_grad():
        scale = (x * w).mean()
    return x * scale + w


def in_place(x, w):
    h = x * w
    h.add_(x)
    h.mul_(2)
    return h.relu_()


def extern_ops(x):
    return torch.linalg.inv(x @ x.t() + torch.eye(x.shape[0], dtype=x.dtype)), torch.cumprod(x, 0), torch.special.i0(x)


class GptBlock(nn.Module):
    """A byte-level model of one block: embeddings, causal attention, MLP, tied head and loss."""

    def __init__(self, vocab: int = 13, width: int = 8, heads: int = 2, length: int = 6) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def attend(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).split(c, dim=2))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        x = x + self.attend(self.norm1(x))
        x = x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        logits = self.norm3(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class ConvBlock(nn.Module):
    """Convolution, batch norm in evaluation, pooling, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)
        self.eval()

    def forward(self, x):
        return self.head(F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).mean((2, 3)))


def leaf(*shape: int, positive: bool = False) -> torch.Tensor:
    made = torch.randn(shape, dtype=torch.float64)
    return (made.abs() + 0.5 if positive else made).requires_grad_()


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]

    @property
    def name(self) -> str:
        return self.fn.__name__


FUNCTIONS = (
    Case(mlp, lambda: (leaf(6, 4), leaf(8, 4), leaf(8), leaf(3, 8), leaf(3))),
    Case(layer_norm, lambda: (leaf(5, 8), leaf(8), leaf(8))),
    Case(rms_norm, lambda: (leaf(5, 8), leaf(8))),
    Case(attention_by_hand, lambda: (leaf(2, 2, 4, 3), leaf(2, 2, 4, 3), leaf(2, 2, 4, 3))),
    Case(cross_entropy, lambda: (leaf(6, 9), torch.randint(0, 9, (6,)))),
    Case(swiglu, lambda: (leaf(3, 4), leaf(3, 4))),
    Case(several_outputs, lambda: (leaf(3, 4), leaf(3, 4))),
    Case(broadcast, lambda: (leaf(3, 1, 4), leaf(5, 1), leaf())),
    Case(views, lambda: (leaf(4, 6),)),
    Case(indexing, lambda: (leaf(7, 4), torch.tensor([0, 3, 3, 6]))),
    Case(reductions, lambda: (leaf(4, 5),)),
    Case(pointwise, lambda: (leaf(6, 5),)),
    Case(no_grad_inside, lambda: (leaf(3, 4), leaf(4))),
    Case(in_place, lambda: (leaf(3, 4), leaf(4))),
    Case(extern_ops, lambda: (leaf(4, 4),)),
)
