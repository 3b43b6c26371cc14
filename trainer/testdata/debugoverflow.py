"""Writes debugoverflow.txt: what transformers' DebugUnderflowOverflow prints of the model of TestDebugUnderflowOverflow.

    python debugoverflow.py > debugoverflow.txt
"""

import torch
from transformers.debug_utils import DebugUnderflowOverflow


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(1, 2), torch.nn.Linear(2, 1)])

    def forward(self, x):
        return self.layers[1](torch.tanh(self.layers[0](x)))


model = MLP()
with torch.no_grad():
    model.layers[0].weight.copy_(torch.tensor([[1.5], [-0.25]]))
    model.layers[0].bias.copy_(torch.tensor([0.5, 2.0]))
    model.layers[1].weight.copy_(torch.tensor([[3e38, 1e-3]]))
    model.layers[1].bias.copy_(torch.tensor([2e38]))
watch = DebugUnderflowOverflow(model)
try:
    model(torch.tensor([[1.0], [-2.0], [0.125]]))
except ValueError:
    pass
