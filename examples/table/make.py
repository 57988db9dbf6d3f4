"""Writes net.pt2, and diabetes.csv from the package scikit-learn.

    pip install ../../python torch==2.11.0 scikit-learn==1.7.2
    python make.py

The table is of B. Efron et al., "Least Angle Regression", 2004: 442 patients, ten measurements, and the
progression of their disease a year later.
"""

import csv

import florin
import torch
from sklearn.datasets import load_diabetes
from torch import nn

data = load_diabetes(scaled=False)
with open("diabetes.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow([*data.feature_names, "progression"])
    writer.writerows([*(f"{value:g}" for value in row), f"{target:g}"] for row, target in zip(data.data, data.target))

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(10, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1))
# The mean is predicted at first.
nn.init.zeros_(model[-1].weight)
nn.init.zeros_(model[-1].bias)
florin.export(model, torch.zeros(4, 10), "net.pt2")
