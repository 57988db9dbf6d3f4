"""Writes digits.pt2: a small residual network for the handwritten digits, 8 by 8 pixels.

    pip install ../../python torch==2.11.0
    python make.py
"""

import florin
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.second, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + x)


torch.manual_seed(1)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    Block(16), nn.MaxPool2d(2), Block(16),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
)
# All digits are equally likely at first: a random head would be confidently wrong.
nn.init.zeros_(model[-1].weight)
nn.init.zeros_(model[-1].bias)
florin.export(model, torch.zeros(4, 1, 8, 8), "digits.pt2")
