"""The subjects of the suite ``models``: the plain torch models of ``tests/models`` at sizes that people train."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.model_suite import Inputs, Subject
from tests.models.gpt import GPT, GPTConfig
from tests.models.llama import Llama, ModelArgs
from tests.models.lstm import LSTM
from tests.models.resnet import ResNet, resnet50, resnet_tiny
from tests.models.t5 import T5
from tests.models.unet import UNet
from tests.models.vit import ViT


def _ids(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(1, vocabulary, shape)


def _gpt2(device: str) -> tuple[nn.Module, Inputs]:
    small = GPTConfig.small()
    return GPT(small), {"idx": _ids(small.vocab_size, *((8, 1024) if device == "cuda" else (1, 8)))}


def _gpt2_short(device: str) -> tuple[nn.Module, Inputs]:
    return GPT(GPTConfig.small()), {"idx": _ids(GPTConfig.small().vocab_size, 1, 8)}


def _gpt_written_out(device: str) -> tuple[nn.Module, Inputs]:
    c = GPTConfig(512, 4096, 6, 8, 512, flash=False) if device == "cuda" else GPTConfig(flash=False)
    return GPT(c), {"idx": _ids(c.vocab_size, 4, c.block_size)}


def _llama(device: str) -> tuple[nn.Module, Inputs]:
    a = ModelArgs(1024, 8, 16, 4, 32000, 2816, max_seq_len=2048) if device == "cuda" else ModelArgs()
    return Llama(a), {"tokens": _ids(a.vocab_size, 4, a.max_seq_len // 2)}


def _vit(device: str) -> tuple[nn.Module, Inputs]:
    model = ViT(224, 16, 1000, 768, 12, 12) if device == "cuda" else ViT()
    return model, {"x": torch.randn(*((32, 3, 224, 224) if device == "cuda" else (4, 3, 32, 32)))}


def _resnet(device: str) -> tuple[nn.Module, Inputs]:
    model: ResNet = resnet50() if device == "cuda" else resnet_tiny()
    return model, {"x": torch.randn(*((32, 3, 224, 224) if device == "cuda" else (4, 3, 32, 32)))}


def _unet(device: str) -> tuple[nn.Module, Inputs]:
    model, side = (UNet(128, (1, 2, 2)), 64) if device == "cuda" else (UNet(), 16)
    return model, {"x": torch.randn(8, 3, side, side), "timesteps": torch.arange(8) * 100}


def _t5(device: str) -> tuple[nn.Module, Inputs]:
    vocabulary, model, length = (32128, T5(32128, 512, 6, 8, 1024), 256) if device == "cuda" else (96, T5(), 16)
    mask = torch.ones(8, length, dtype=torch.long)
    return model, {"ids": _ids(vocabulary, 8, length), "mask": mask, "labels": _ids(vocabulary, 8, length // 2)}


def _lstm(device: str) -> tuple[nn.Module, Inputs]:
    width, steps = (512, 32) if device == "cuda" else (16, 8)
    return LSTM(width, width), {"x": torch.randn(steps, 64, width)}


PLAIN = (
    Subject("gpt2_124m", "8x1024 (1x8 on a CPU)", _gpt2),
    Subject("gpt2_124m, one short text", "1x8", _gpt2_short),
    Subject("gpt_written_out", "6 layers, 4x512", _gpt_written_out),
    Subject("llama", "8 layers, 4x1024", _llama),
    Subject("vit_base", "32 images of 224", _vit),
    Subject("resnet50", "32 images of 224", _resnet),
    Subject("unet", "8 images of 64", _unet),
    Subject("t5_small", "8x256", _t5),
    Subject("lstm", "32 steps of 64x512", _lstm),
)
