"""Gauss–Legendre quadrature on 0 to 1."""

from math import cos, pi


def gauss_legendre(count):
    """Nodes and weights on 0 to 1, by Newton's method on the Legendre polynomial."""
    rule = []
    for k in range(count, 0, -1):
        x = cos(pi * (k - 0.25) / (count + 0.5))
        for _ in range(50):
            before, value = 1.0, x
            for degree in range(2, count + 1):
                before, value = value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree
            slope = count * (x * value - before) / (x * x - 1)
            x -= value / slope
        rule.append(((1 + x) / 2, 1 / ((1 - x * x) * slope * slope)))
    return rule


NODES = {count: gauss_legendre(count) for count in (*range(1, 9), 12)}
