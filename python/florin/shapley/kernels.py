"""Kernels over coalitions: priors of the interactions of a game.

A game is a sum of products of signs, `v(z) = Σ_T a_T·Π_{i∈T} z_i` with z_i = +1 in and −1 out. A kernel is a prior
with a variance of each a_T. Only products of an odd number of players affect the Shapley value; those of an even number
reveal which players interact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from florin.shapley.game import Floats
from florin.shapley.path import gauss_legendre

# Quadrature nodes of the Shapley values of a product: exact up to 16 players, and nearly so beyond.
NODES = 8


class Uniform:
    """Interactions of three (odd part) or two players (even part), all with the same variance."""

    def between(self, odd: bool, a: Floats, b: Floats) -> Floats:
        n = a.shape[1]
        t: Floats = a @ b.T
        return np.asarray((t * t * t - (3.0 * n - 2.0) * t) / 6.0 if odd else (t * t - n) / 2.0)

    def values(self, z: Floats) -> Floats:
        """The Shapley values of the game that is the kernel to each side: shape (sides, n)."""
        rest = z.sum(axis=1, keepdims=True) - z
        return np.asarray(z * (rest * rest - (z.shape[1] - 1.0)) / 3.0)


class Products:
    """`Σ_r Π_i (1 + τ_ri·z_i·z'_i)`: variances that are products of the players' scales τ, each below 1."""

    def __init__(self, scales: Floats) -> None:
        self.scales = scales

    def between(self, odd: bool, a: Floats, b: Floats) -> Floats:
        # Π (1 ± τ·s) of signs s is c·exp(±Σ artanh(τ)·s) with c = Π √(1 − τ²): one product of matrices per term.
        whole = np.zeros((a.shape[0], b.shape[0]))
        for tau in self.scales:
            factor = math.exp(0.5 * float(np.log1p(-tau * tau).sum()))
            turned = (a * np.arctanh(tau)) @ b.T
            whole += factor * np.sinh(turned) - (a * tau) @ b.T if odd else factor * np.cosh(turned) - 1.0
        return whole

    def values(self, z: Floats) -> Floats:
        values = np.zeros_like(z)
        for tau in self.scales:
            own = z * tau
            for node, weight in zip(*gauss_legendre(NODES)):
                with_, against = (1.0 + node * own), (1.0 - node * own)
                half = 0.5 * (with_.prod(axis=1, keepdims=True) / with_ + against.prod(axis=1, keepdims=True) / against)
                values += weight * 2.0 * own * (half - 1.0)
        return values


Kernel = Uniform | Products


@dataclass
class Gram:
    """The matrix of a kernel over sides, and the factor that makes its first entry 1."""

    matrix: Floats
    scale: float


def gram_of(kernel: Kernel, odd: bool, z: Floats) -> Gram | None:
    """The matrix of one part of a kernel over sides; None if the kernel is zero."""
    matrix = kernel.between(odd, z, z)
    alone = float(matrix[0, 0])
    if not alone > 0.0 or not math.isfinite(1.0 / alone):
        return None
    return Gram(matrix / alone, 1.0 / alone)
