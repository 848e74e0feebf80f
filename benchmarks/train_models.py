"""Models whose training steps are timed: a GPT-2, a Llama-like block, a ResNet-50. ``small`` sizes are for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Of a decoder: layers, heads, width, vocabulary, and the batch's rows and length."""

    layers: int
    heads: int
    width: int
    vocabulary: int
    batch: int
    length: int


class Block(nn.Module):
    """Pre-norm attention and a GELU MLP, each with biases (Radford et al., 2019)."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """Returns the mean cross-entropy of the next token. The embedding is the output's weight."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(s.vocabulary, s.width), nn.Embedding(s.length, s.width)
        self.blocks = nn.ModuleList(Block(s.heads, s.width) for _ in range(s.layers))
        self.norm, self.head = nn.LayerNorm(s.width), nn.Linear(s.width, s.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.view(-1))


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, grouped keys and values, SwiGLU (Touvron et al., 2023)."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.groups, self.dim = heads, max(heads // 4, 1), width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * self.groups * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        hidden = 8 * width // 3 // 64 * 64
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        y = self.norm1(x)
        q = self.q(y).view(b, t, self.heads, self.dim).transpose(1, 2)
        k, v = (p.view(b, t, self.groups, self.dim).transpose(1, 2) for p in self.kv(y).chunk(2, -1))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = (p.repeat_interleave(self.heads // self.groups, 1) for p in (k, v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021) on [batch, heads, length, dim], halves paired."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class Llama(nn.Module):
    """A stack of blocks on a given input; the loss is the mean square of what comes out."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(LlamaBlock(s.heads, s.width) for _ in range(s.layers))
        dim = s.width // s.heads
        angle = torch.outer(torch.arange(s.length), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.mse_loss(x.float(), target)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with batch normalisation, and a way around (He et al., 2015)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        plain = stride == 1 and inputs == outputs
        self.around = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.around(x))


class ResNet(nn.Module):
    """ResNet with bottlenecks; returns the cross-entropy."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        stages: list[nn.Module] = []
        inputs = width
        for stage, count in enumerate(blocks):
            for k in range(count):
                stages.append(Bottleneck(inputs, width << stage, 2 if stage and not k else 1))
                inputs = 4 * (width << stage)
        self.stages, self.head = nn.Sequential(*stages), nn.Linear(inputs, 1000)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.stages(self.stem(x)).mean((2, 3))), target)


@dataclass(frozen=True)
class Training:
    """One training job: ``make(small)`` gives the model and a batch on the CPU."""

    name: str
    make: Callable[[bool], tuple[nn.Module, tuple[Tensor, Tensor]]]


def _gpt(small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    s = Sizes(2, 4, 64, 512, 2, 64) if small else Sizes(12, 12, 768, 50304, 8, 1024)
    tokens = torch.randint(0, s.vocabulary, (s.batch, s.length + 1))
    return GPT(s), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def _llama(small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    s = Sizes(1, 4, 64, 0, 2, 32) if small else Sizes(4, 32, 2048, 0, 4, 2048)
    return Llama(s), (torch.randn(s.batch, s.length, s.width), torch.randn(s.batch, s.length, s.width))


def _resnet(small: bool) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    if small:
        return ResNet((1, 1), 8), (torch.randn(2, 3, 32, 32), torch.randint(0, 1000, (2,)))
    return ResNet(), (torch.randn(64, 3, 224, 224), torch.randint(0, 1000, (64,)))


TRAININGS = (Training("gpt2_124m", _gpt), Training("llama_block", _llama), Training("resnet50", _resnet))
