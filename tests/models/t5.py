"""A T5-like encoder-decoder: relative position buckets, RMS norm without bias, cross attention, gated GELU."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class T5LayerNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.promote_types(torch.float32, hidden_states.dtype)).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


class T5Attention(nn.Module):
    def __init__(self, d_model, n_heads, is_decoder, has_bias, num_buckets=8, max_distance=20):
        super().__init__()
        self.is_decoder = is_decoder
        self.n_heads = n_heads
        self.d_kv = d_model // n_heads
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.q = nn.Linear(d_model, d_model, bias=False)
        self.k = nn.Linear(d_model, d_model, bias=False)
        self.v = nn.Linear(d_model, d_model, bias=False)
        self.o = nn.Linear(d_model, d_model, bias=False)
        self.has_relative_attention_bias = has_bias
        if has_bias:
            self.relative_attention_bias = nn.Embedding(num_buckets, n_heads)

    @staticmethod
    def _relative_position_bucket(relative_position, bidirectional=True, num_buckets=8, max_distance=20):
        relative_buckets = 0
        if bidirectional:
            num_buckets //= 2
            relative_buckets += (relative_position > 0).to(torch.long) * num_buckets
            relative_position = torch.abs(relative_position)
        else:
            relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
        max_exact = num_buckets // 2
        is_small = relative_position < max_exact
        relative_position_if_large = max_exact + (
            torch.log(relative_position.float() / max_exact) / math.log(max_distance / max_exact) * (num_buckets - max_exact)
        ).to(torch.long)
        relative_position_if_large = torch.min(
            relative_position_if_large, torch.full_like(relative_position_if_large, num_buckets - 1)
        )
        relative_buckets += torch.where(is_small, relative_position, relative_position_if_large)
        return relative_buckets

    def compute_bias(self, query_length, key_length):
        device = self.relative_attention_bias.weight.device
        context_position = torch.arange(query_length, dtype=torch.long, device=device)[:, None]
        memory_position = torch.arange(key_length, dtype=torch.long, device=device)[None, :]
        relative_position = memory_position - context_position
        bucket = self._relative_position_bucket(
            relative_position,
            bidirectional=(not self.is_decoder),
            num_buckets=self.num_buckets,
            max_distance=self.max_distance,
        )
        values = self.relative_attention_bias(bucket)
        return values.permute([2, 0, 1]).unsqueeze(0)

    def forward(self, hidden_states, mask=None, key_value_states=None, position_bias=None):
        batch_size, seq_length = hidden_states.shape[:2]
        current = hidden_states if key_value_states is None else key_value_states
        key_length = current.shape[1]

        def shape(states):
            return states.view(batch_size, -1, self.n_heads, self.d_kv).transpose(1, 2)

        query, key, value = shape(self.q(hidden_states)), shape(self.k(current)), shape(self.v(current))
        scores = torch.matmul(query, key.transpose(3, 2))
        if position_bias is None:
            if not self.has_relative_attention_bias:
                position_bias = torch.zeros((1, self.n_heads, seq_length, key_length), device=scores.device, dtype=scores.dtype)
            else:
                position_bias = self.compute_bias(seq_length, key_length)
            if mask is not None:
                position_bias = position_bias + mask
        scores += position_bias
        weights = F.softmax(scores.float() if scores.dtype != torch.float64 else scores, dim=-1).type_as(scores)
        output = torch.matmul(weights, value).transpose(1, 2).contiguous().view(batch_size, -1, self.n_heads * self.d_kv)
        return self.o(output), position_bias


class T5FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.wi_0 = nn.Linear(d_model, d_ff, bias=False)
        self.wi_1 = nn.Linear(d_model, d_ff, bias=False)
        self.wo = nn.Linear(d_ff, d_model, bias=False)
        self.layer_norm = T5LayerNorm(d_model)

    def forward(self, hidden_states):
        normed = self.layer_norm(hidden_states)
        return hidden_states + self.wo(F.gelu(self.wi_0(normed), approximate="tanh") * self.wi_1(normed))


class T5Block(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, is_decoder, has_bias):
        super().__init__()
        self.is_decoder = is_decoder
        self.attention = T5Attention(d_model, n_heads, is_decoder, has_bias)
        self.attention_norm = T5LayerNorm(d_model)
        if is_decoder:
            self.cross = T5Attention(d_model, n_heads, is_decoder, False)
            self.cross_norm = T5LayerNorm(d_model)
        self.feed_forward = T5FeedForward(d_model, d_ff)

    def forward(self, hidden_states, mask, position_bias, encoded=None, encoded_mask=None, cross_bias=None):
        out, position_bias = self.attention(self.attention_norm(hidden_states), mask, position_bias=position_bias)
        hidden_states = hidden_states + out
        if self.is_decoder:
            out, cross_bias = self.cross(self.cross_norm(hidden_states), encoded_mask, encoded, position_bias=cross_bias)
            hidden_states = hidden_states + out
        return self.feed_forward(hidden_states), position_bias, cross_bias


class T5Stack(nn.Module):
    def __init__(self, embed, d_model, n_layers, n_heads, d_ff, is_decoder):
        super().__init__()
        self.embed_tokens = embed
        self.is_decoder = is_decoder
        self.block = nn.ModuleList([T5Block(d_model, n_heads, d_ff, is_decoder, has_bias=i == 0) for i in range(n_layers)])
        self.final_layer_norm = T5LayerNorm(d_model)

    def extended(self, mask, dtype):
        extended = mask[:, None, None, :]
        if self.is_decoder:
            length = mask.shape[1]
            ids = torch.arange(length, device=mask.device)
            causal = ids[None, None, :].repeat(mask.shape[0], length, 1) <= ids[None, :, None]
            extended = causal[:, None, :, :].to(mask.dtype) * extended
        return (1.0 - extended.to(dtype)) * torch.finfo(dtype).min

    def forward(self, ids, mask, encoded=None, encoded_mask=None):
        hidden_states = self.embed_tokens(ids)
        dtype = hidden_states.dtype
        extended = self.extended(mask, dtype)
        inverted = None if encoded_mask is None else (1.0 - encoded_mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min
        position_bias, cross_bias = None, None
        for block in self.block:
            hidden_states, position_bias, cross_bias = block(
                hidden_states, extended, position_bias, encoded=encoded, encoded_mask=inverted, cross_bias=cross_bias
            )
        return self.final_layer_norm(hidden_states)


class T5(nn.Module):
    """``forward(ids, mask, labels)``: (B, S) ids and their mask, (B, T) ids to predict -> a dict of loss and logits."""

    def __init__(self, vocab=96, d_model=32, n_layers=2, n_heads=4, d_ff=64, pad=0):
        super().__init__()
        self.pad = pad
        self.d_model = d_model
        self.shared = nn.Embedding(vocab, d_model)
        self.encoder = T5Stack(self.shared, d_model, n_layers, n_heads, d_ff, is_decoder=False)
        self.decoder = T5Stack(self.shared, d_model, n_layers, n_heads, d_ff, is_decoder=True)

    def _shift_right(self, labels):
        shifted = labels.new_zeros(labels.shape)
        shifted[..., 1:] = labels[..., :-1].clone()
        shifted[..., 0] = self.pad
        shifted.masked_fill_(shifted == -100, self.pad)
        return shifted

    def forward(self, ids, mask, labels):
        encoded = self.encoder(ids, mask)
        decoder_ids = self._shift_right(labels)
        decoded = self.decoder(decoder_ids, torch.ones_like(decoder_ids), encoded, mask)
        logits = F.linear(decoded * self.d_model**-0.5, self.shared.weight)
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits}
