"""A diffusion U-Net in small: sinusoidal time embedding, residual blocks with group norm, attention, skips, upsampling."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half).to(timesteps.device)
    args = timesteps[:, None].float() * freqs[None]
    embedding = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    if dim % 2:
        embedding = torch.cat([embedding, torch.zeros_like(embedding[:, :1])], dim=-1)
    return embedding


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(4, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
        self.emb = nn.Sequential(nn.SiLU(), nn.Linear(emb, 2 * cout))
        self.norm = nn.GroupNorm(4, cout)
        self.out = nn.Sequential(nn.SiLU(), nn.Conv2d(cout, cout, 3, padding=1))
        self.skip = nn.Identity() if cin == cout else nn.Conv2d(cin, cout, 1)

    def forward(self, x, emb):
        h = self.in_layers(x)
        scale, shift = self.emb(emb)[:, :, None, None].chunk(2, dim=1)
        h = self.norm(h) * (1 + scale) + shift
        return self.skip(x) + self.out(h)


class AttentionBlock(nn.Module):
    def __init__(self, channels, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, channels)
        self.qkv = nn.Conv1d(channels, channels * 3, 1)
        self.proj = nn.Conv1d(channels, channels, 1)

    def forward(self, x):
        b, c, *spatial = x.shape
        x = x.reshape(b, c, -1)
        qkv = self.qkv(self.norm(x)).reshape(b * self.heads, -1, x.shape[-1])
        q, k, v = qkv.chunk(3, dim=1)
        scale = 1 / math.sqrt(math.sqrt(q.shape[1]))
        weight = torch.einsum("bct,bcs->bts", q * scale, k * scale).softmax(dim=-1)
        h = torch.einsum("bts,bcs->bct", weight, v).reshape(b, c, -1)
        return (x + self.proj(h)).reshape(b, c, *spatial)


class Upsample(nn.Module):
    def __init__(self, channels, mode="nearest"):
        super().__init__()
        self.mode = mode
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        if self.mode == "nearest":
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        else:
            x = F.interpolate(x, size=(x.shape[2] * 2, x.shape[3] * 2), mode="bilinear", align_corners=False)
        return self.conv(x)


class UNet(nn.Module):
    """Images (B, 3, H, W) and times (B,) -> the noise (B, 3, H, W)."""

    def __init__(self, width=8, mults=(1, 2), mode="nearest"):
        super().__init__()
        emb = width * 4
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels, skips = width, []
        for m in mults:
            self.down.append(ResBlock(channels, width * m, emb))
            channels = width * m
            skips.append(channels)
            self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
        self.middle = nn.ModuleList(
            [ResBlock(channels, channels, emb), AttentionBlock(channels), ResBlock(channels, channels, emb)]
        )
        for m in reversed(mults):
            self.up.append(Upsample(channels, mode))
            self.up.append(ResBlock(channels + skips.pop(), width * m, emb))
            channels = width * m
        self.head = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, x, timesteps):
        emb = self.time(timestep_embedding(timesteps, self.width).to(x.dtype))
        h = self.stem(x)
        hs = []
        for module in self.down:
            if isinstance(module, ResBlock):
                h = module(h, emb)
                hs.append(h)
            else:
                h = module(h)
        for module in self.middle:
            h = module(h, emb) if isinstance(module, ResBlock) else module(h)
        for module in self.up:
            if isinstance(module, ResBlock):
                h = module(torch.cat([h, hs.pop()], dim=1), emb)
            else:
                h = module(h)
        return self.head(h)
