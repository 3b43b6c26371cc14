"""PyTorch's rows of bench/kernels for images; see peer.py."""

import torch
import torch.nn.functional as F
from filled import filled
from torch import nn

BATCH = 32


def gradients(f, *leaves):
    """Runs f and its gradient for a seed of ones."""
    with torch.no_grad():
        seed = torch.ones(()).expand_as(f())

    def run():
        torch.autograd.grad(f(), leaves, seed)

    return run


def conv2d(inner, outer, kernel, stride, size):
    x, w = filled(BATCH, inner, size, size), filled(outer, inner, kernel, kernel).requires_grad_()
    leaves = [w]
    if inner != 3:
        leaves.append(x.requires_grad_())
    return gradients(lambda: F.conv2d(x, w, stride=stride, padding=kernel // 2), *leaves)


def batch_norm(channels, size):
    x = filled(BATCH, channels, size, size).requires_grad_()
    return gradients(lambda: F.batch_norm(x, None, None, training=True), x)


def max_pool(channels, size):
    x = filled(BATCH, channels, size, size).requires_grad_()
    return gradients(lambda: F.max_pool2d(x, 3, 2, 1), x)


def conv(inner, outer, kernel, stride):
    return nn.Sequential(nn.Conv2d(inner, outer, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outer))


class Layer(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first, self.second = conv(inner, outer, 3, stride), conv(outer, outer, 3, 1)
        self.shortcut = conv(inner, outer, 1, stride) if inner != outer else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


def resnet18():
    torch.manual_seed(0)
    layers, inner = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for outer in (64, 128, 256, 512):
        layers += [Layer(inner, outer, 1 if inner == outer else 2), Layer(outer, outer, 1)]
        inner = outer
    m = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).train()
    opt = torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9)
    x, labels = filled(BATCH, 3, 64, 64), torch.arange(BATCH) * 7919 % 1000

    def run():
        opt.zero_grad(set_to_none=True)
        F.cross_entropy(m(x), labels).backward()
        opt.step()

    return run


ROWS = {"conv2d": conv2d, "batch_norm": batch_norm, "max_pool": max_pool, "resnet18": resnet18}  # by the beginnings of their names
