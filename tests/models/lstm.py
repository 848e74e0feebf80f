"""An LSTM written by hand: one cell a step, layers in a list, states in Python containers, a bidirectional variant."""

from __future__ import annotations

import torch
from torch import nn


class LSTMCell(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.weight_ih = nn.Parameter(torch.randn(4 * hidden_size, input_size) * 0.2)
        self.weight_hh = nn.Parameter(torch.randn(4 * hidden_size, hidden_size) * 0.2)
        self.bias_ih = nn.Parameter(torch.zeros(4 * hidden_size))
        self.bias_hh = nn.Parameter(torch.zeros(4 * hidden_size))

    def forward(self, x, state):
        h, c = state
        gates = x @ self.weight_ih.t() + self.bias_ih + h @ self.weight_hh.t() + self.bias_hh
        i, f, g, o = gates.chunk(4, 1)
        i = torch.sigmoid(i)
        f = torch.sigmoid(f)
        g = torch.tanh(g)
        o = torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, c


class LSTM(nn.Module):
    """x (T, B, input), optional states -> outputs (T, B, directions * hidden) and the last (h, c) of each layer."""

    def __init__(self, input_size=8, hidden_size=16, num_layers=2, bidirectional=False):
        super().__init__()
        self.hidden_size = hidden_size
        self.bidirectional = bidirectional
        directions = 2 if bidirectional else 1
        self.layers = nn.ModuleList(
            nn.ModuleList(LSTMCell(input_size if n == 0 else directions * hidden_size, hidden_size) for _ in range(directions))
            for n in range(num_layers)
        )

    def _run(self, cell, steps, state):
        outputs = []
        for x in steps:
            state = cell(x, state)
            outputs += [state[0]]
        return outputs, state

    def forward(self, x, states=None):
        steps = list(x.unbind(0))
        last = []
        for n, cells in enumerate(self.layers):
            found = []
            for d, cell in enumerate(cells):
                if states is None:
                    zeros = x.new_zeros(x.size(1), self.hidden_size)
                    state = (zeros, zeros)
                else:
                    state = states[n * len(cells) + d]
                order = reversed(steps) if d else steps
                outputs, state = self._run(cell, order, state)
                found.append(outputs[::-1] if d else outputs)
                last.append(state)
            steps = [torch.cat(pair, dim=-1) for pair in zip(*found)] if len(found) > 1 else found[0]
        return torch.stack(steps), last
