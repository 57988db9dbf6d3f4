"""Writes small models that are hard to read, to write back or to evaluate.

    pip install ../../../python torch==2.11.0
    FLORIN=… python make.py
"""

import florin
import torch
from torch import nn
from torch.nn import functional as F


class Shared(nn.Module):
    """Two parameters that are views of one storage."""

    def __init__(self):
        super().__init__()
        both = torch.randn(24)
        self.weight, self.bias = nn.Parameter(both[:20].view(4, 5).t()), nn.Parameter(both[20:])

    def forward(self, x):
        return x @ self.weight + self.bias


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Alias(nn.Module):
    """It changes a parameter through a view."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.linear.weight.detach().mul_(1.01)
        return self.linear(x)


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y + torch.randn_like(y)


class Probability(nn.Module):
    """Its last operator refuses values beyond 0 and 1: parameters decide whether it runs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        p = torch.sigmoid(x[:, :1]) * self.scale
        return F.binary_cross_entropy(p, (x[:, 1:2] > 0).float(), reduction="none")


def channels_last():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    ).to(memory_format=torch.channels_last)


def instance_norm():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(12, 3)
    )


torch.manual_seed(1)
row, image = torch.randn(3, 4), torch.randn(3, 1, 4, 4)
for name, model, example in [
    ("shared", Shared(), torch.randn(3, 5)),
    ("tied", Tied(), row),
    ("alias", Alias(), row),
    ("random", Random(), row),
    ("probability", Probability(), row),
    ("channels_last", channels_last(), image),
    ("instance_norm", instance_norm(), image),
]:
    florin.export(model, example, f"{name}.pt2")
