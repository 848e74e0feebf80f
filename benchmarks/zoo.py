"""The subjects of the suite ``zoo``: models of transformers and timm, small, with random weights. A package that is not
installed is reported, and its rows are empty."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from benchmarks.model_suite import Inputs, Subject

Make = Callable[[str], tuple[nn.Module, Inputs]]


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 1000, shape)


def _tokens() -> Inputs:
    return {"input_ids": _ids(4, 128)}


def _transformers(config: str, model: str, numbers: Mapping[str, Any], inputs: Callable[[], Inputs]) -> Make:
    def make(device: str) -> tuple[nn.Module, Inputs]:
        package = importlib.import_module("transformers")
        torch.manual_seed(0)
        made = getattr(package, model)(getattr(package, config)(**numbers))
        return made, inputs()

    return make


def _timm(model: str, side: int) -> Make:
    def make(device: str) -> tuple[nn.Module, Inputs]:
        package = importlib.import_module("timm")
        return package.create_model(model, pretrained=False), {"x": torch.randn(8, 3, side, side)}

    return make


_DECODER = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 256, "use_cache": False,
}  # fmt: skip
_BERT = {
    "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
}  # fmt: skip
_T5 = {
    "vocab_size": 1000, "d_model": 256, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 8, "use_cache": False,
    "feed_forward_proj": "gated-gelu", "decoder_start_token_id": 0,
}  # fmt: skip
_WHISPER = {
    "vocab_size": 1000, "d_model": 256, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 8,
    "decoder_attention_heads": 8, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "max_source_positions": 100,
    "num_mel_bins": 80, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
_VIT = {
    "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "image_size": 96,
    "patch_size": 16,
}  # fmt: skip
_GPT2 = {"vocab_size": 1000, "n_positions": 256, "n_embd": 256, "n_layer": 4, "n_head": 8, "use_cache": False}

ZOO = (
    Subject("hf bert", "4 layers, 4x128", _transformers("BertConfig", "BertForMaskedLM", _BERT, _tokens)),
    Subject("hf gpt2", "4 layers, 4x128", _transformers("GPT2Config", "GPT2LMHeadModel", _GPT2, _tokens)),
    Subject("hf llama", "4 layers, 4x128", _transformers("LlamaConfig", "LlamaForCausalLM", _DECODER, _tokens)),
    Subject("hf qwen2", "4 layers, 4x128", _transformers("Qwen2Config", "Qwen2ForCausalLM", _DECODER, _tokens)),
    Subject(
        "hf t5",
        "3 + 3 layers, 4x64",
        _transformers(
            "T5Config",
            "T5ForConditionalGeneration",
            _T5,
            lambda: {"input_ids": _ids(4, 64), "decoder_input_ids": _ids(4, 32)},
        ),
    ),
    Subject(
        "hf whisper",
        "3 + 3 layers, 2x200 frames",
        _transformers(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            _WHISPER,
            lambda: {"input_features": torch.randn(2, 80, 200), "decoder_input_ids": _ids(2, 32)},
        ),
    ),
    Subject(
        "hf vit",
        "4 layers, 8 images of 96",
        _transformers("ViTConfig", "ViTModel", _VIT, lambda: {"pixel_values": torch.randn(8, 3, 96, 96)}),
    ),
    Subject("timm resnet18", "8 images of 96", _timm("resnet18", 96)),
    Subject("timm convnext_atto", "8 images of 96", _timm("convnext_atto", 96)),
    Subject("timm efficientnet_b0", "8 images of 96", _timm("efficientnet_b0", 96)),
    Subject("timm swin_tiny", "8 images of 224", _timm("swin_tiny_patch4_window7_224", 224)),
)
