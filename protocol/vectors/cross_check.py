"""The cross-check of a valuation, as docs/protocol.md states it: the coalitions that its seed draws, and the scores
that follow from their values by paired regression. A coalition is a frozenset of positions among the members."""

from itertools import combinations
from math import comb, inf, isfinite, sqrt

from draws import Stream
from quadrature import NODES

PAIRS = 0x70616972
UNPENALISED, GRAND_SHARE, UNCERTAIN = 1e6, 1e-3, 1e3


def smaller_side(side, players):
    """The side of a pair that stands for it: the smaller one, or the one with member 0."""
    if 2 * len(side) > players or (2 * len(side) == players and 0 not in side):
        return frozenset(range(players)) - side
    return frozenset(side)


def draw_pairs(seed, players, count):
    """The first `count` distinct pairs, or all."""
    draw, drawn, left, turn = Stream(seed, PAIRS), [], {}, 0
    sizes = range(1, players // 2 + 1)
    all_of = {s: comb(players, s) // (2 if 2 * s == players else 1) for s in sizes}
    number = lambda size: sum(len(side) == size for side in drawn)

    for player in reversed(draw.permutation(players)):
        side = smaller_side(frozenset([player]), players)
        if side not in drawn:
            drawn.append(side)
    turns = []
    while len(drawn) < count:
        while not turns:
            turns = [s for s in sizes if number(s) < all_of[s]]
            if not turns:
                return drawn
            if turn % 2 == 1 and any(2 * s != players for s in turns):
                turns = [s for s in turns if 2 * s != players]
            turn += 1
            draw.shuffle(turns)
            turns = [s for s in reversed(turns)]
        size = turns.pop(0)
        if number(size) >= all_of[size]:
            continue
        if size not in left and number(size) >= all_of[size] // 2:
            sides = (frozenset(each) for each in combinations(range(players), size))
            left[size] = [s for s in sides if smaller_side(s, players) == s and s not in drawn]
            draw.shuffle(left[size])
        if size in left:
            drawn.append(left[size].pop())
            continue
        while True:
            side = smaller_side(frozenset(draw.subset(players, size)), players)
            if side not in drawn:
                drawn.append(side)
                break
    return drawn[:count]


# --- linear algebra ---


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def cholesky(a):
    """The lower factor; None if the matrix is not positive definite."""
    lower = []
    for i, row in enumerate(a):
        new = []
        for j in range(i):
            new.append((row[j] - dot(new, lower[j])) / lower[j][j])
        pivot = row[i] - dot(new, new)
        if not (pivot > 0 and isfinite(pivot)):
            return None
        lower.append([*new, sqrt(pivot)])
    return lower


def forward(lower, b):
    """L⁻¹ · b."""
    x = list(b)
    for i, row in enumerate(lower):
        x[i] = (x[i] - dot(row[:i], x)) / row[i]
    return x


def backward(lower, b):
    """L⁻ᵀ · b."""
    x = list(b)
    for i in reversed(range(len(x))):
        x[i] /= lower[i][i]
        for j in range(i):
            x[j] -= lower[i][j] * x[i]
    return x


def solve(lower, b):
    return backward(lower, forward(lower, b))


def inverse_diagonal(lower):
    n = len(lower)
    units = ([float(i == k) for i in range(n)] for k in range(n))
    return [solve(lower, unit)[k] for k, unit in enumerate(units)]


# --- kernels ---


def signs_of(side, players):
    return [1.0 if player in side else -1.0 for player in range(players)]


class Uniform:
    """Interactions of three (odd part) or two members (even part), all with the same variance."""

    def between(self, odd, a, b):
        n, t = len(a), dot(a, b)
        return (t * t * t - (3 * n - 2) * t) / 6 if odd else (t * t - n) / 2

    def values(self, z):
        total, others = sum(z), len(z) - 1
        return [sign * ((total - sign) ** 2 - others) / 3 for sign in z]


class Products:
    """Interactions whose variances are products of the members' scales, summed over terms."""

    def __init__(self, terms):
        self.terms = terms

    def between(self, odd, a, b):
        same = opposite = single = 0.0
        for term in self.terms:
            with_, against = 1.0, 1.0
            for tau, x, y in zip(term, a, b):
                with_ *= 1 + tau * x * y
                against *= 1 - tau * x * y
                single += tau * x * y
            same, opposite = same + with_, opposite + against
        return (same - opposite) / 2 - single if odd else (same + opposite) / 2 - len(self.terms)

    def values(self, z):
        values = [0.0] * len(z)
        for term in self.terms:
            for node, weight in NODES[8]:
                with_ = against = 1.0
                for tau, sign in zip(term, z):
                    with_ *= 1 + node * tau * sign
                    against *= 1 - node * tau * sign
                for i, (tau, sign) in enumerate(zip(term, z)):
                    own = tau * sign
                    half = (with_ / (1 + node * own) + against / (1 - node * own)) / 2
                    values[i] += weight * 2 * own * (half - 1)
        return values


def gram(kernel, odd, rows):
    """The matrix of a kernel, and the factor that makes its first entry 1; None if that is zero."""
    alone = kernel.between(odd, rows[0], rows[0])
    if not alone > 0:
        return None
    return [[kernel.between(odd, a, b) / alone for b in rows] for a in rows], 1 / alone


def with_noise(matrix, noise):
    matrix = [list(row) for row in matrix]
    for k, row in enumerate(matrix):
        row[k] += noise * (GRAND_SHARE if k == 0 else 1)
    return matrix


def leave_one_out(odd, rows, data, matrix, noise):
    """The root mean square of the predicted residuals, and the coefficients; None if undetermined."""
    n, size = len(rows[0]), len(rows)
    free = [[UNPENALISED * (dot(a, b) / n if odd else 1) for b in rows] for a in rows]
    total = free if matrix is None else [[x + y for x, y in zip(*pair)] for pair in zip(free, matrix)]
    lower = cholesky(with_noise(total, noise))
    if lower is None:
        return None
    alpha, inverse = solve(lower, data), inverse_diagonal(lower)
    limit = UNCERTAIN * max(noise, 0 if matrix is None else 1)
    missed = [(alpha[k] / inverse[k]) ** 2 for k in range(1, size) if inverse[k] * limit > 1]
    return (sqrt(sum(missed) / len(missed)), alpha) if missed else None


# --- the choice of a prior ---


def scaled(share, power, largest):
    raised = {0.5: sqrt(share), 1.0: share, 2.0: share * share}[power]
    return largest * max(raised, 1e-4)


def largest_of(numbers):
    return max([2.2250738585072014e-308, *map(abs, numbers)])


class Comparison:
    def __init__(self, odd, rows, data):
        self.odd, self.rows, self.data = odd, rows[:256], data[:256]

    def tried(self, kernel, noises):
        """The best of some noise levels: (error, noise, coefficients); None if none is determined."""
        made = gram(kernel, self.odd, self.rows)
        results = []
        for noise in noises if made else []:
            found = leave_one_out(self.odd, self.rows, self.data, made[0], noise)
            if found:
                results.append((found[0], noise, found[1]))
        return min(results, key=lambda each: each[0], default=None)

    def best_shape(self, shapes, terms):
        kernels = [Products(terms(power, largest)) for power, largest in shapes]
        results = [(self.tried(kernel, [1e-3]), kernel) for kernel in kernels]
        results = [(found[0], kernel, 1e-3) for found, kernel in results if found]
        return min(results, key=lambda each: each[0], default=None)


def partner_scales(strengths, power, largest):
    n, top = len(strengths), largest_of(x for row in strengths for x in row)
    terms = []
    for i, row in enumerate(strengths):
        own = largest_of(row)
        terms.append([scaled((own if j == i else abs(row[j])) / top, power, largest) for j in range(n)])
    return terms


def interactions(rows, alpha, expected):
    n = len(rows[0])
    return [
        [0.0 if i == j else expected[i][j] * sum(a * z[i] * z[j] for a, z in zip(alpha, rows)) for j in range(n)]
        for i in range(n)
    ]


def pairwise(rows, even):
    """The strength of the interaction of each two members, from the even part."""
    bench, n = Comparison(False, rows, even), len(rows[0])
    first = bench.tried(Uniform(), [1e-4, 1e-2])
    if not first:
        return None
    strengths = interactions(bench.rows, first[2], [[1.0] * n] * n)
    again = []
    for power, largest in ((1.0, 0.1), (1.0, 0.3)):
        terms = partner_scales(strengths, power, largest)
        found = bench.tried(Products(terms), [1e-3])
        if found:
            again.append((found, [[sum(t[i] * t[j] for t in terms) for j in range(n)] for i in range(n)]))
    if not again:
        return None
    found, expected = min(again, key=lambda each: each[0][0])
    return interactions(bench.rows, found[2], expected)


def choose_prior(rows, odd, even):
    """The kernel, its noise, its error and that of the additive model; None if no kernel is better."""
    bench, n = Comparison(True, rows, odd), len(rows[0])
    if not gram(Uniform(), True, bench.rows):
        return None
    if len(bench.rows) < n + 4:
        found = bench.tried(Uniform(), [1e-3])
        return (Uniform(), 1e-3, found[0], inf) if found else None
    linear = leave_one_out(True, bench.rows, bench.data, None, 1.0)
    exact = len(bench.rows) > n + comb(n, 3)
    first = bench.tried(Uniform(), [1e-9, 1e-4, 1e-2, 1.0][0 if exact else 1 :])
    if not linear or not first:
        return None
    made = gram(Uniform(), True, bench.rows)
    values = [2 * UNPENALISED / n * sum(a * z[i] for a, z in zip(first[2], bench.rows)) for i in range(n)]
    for alpha, z in zip(first[2], bench.rows):
        values = [v + alpha * made[1] * x for v, x in zip(values, Uniform().values(z))]
    models = [(first[0], Uniform(), first[1])]
    top = largest_of(values)
    shapes = ((0.5, 0.1), (1.0, 0.1), (1.0, 0.3), (2.0, 0.3))
    models.append(bench.best_shape(shapes, lambda p, t: [[scaled(abs(v) / top, p, t) for v in values]]))
    strengths = pairwise(rows, even)
    if strengths:
        shapes = ((1.0, 0.1), (1.0, 0.3), (2.0, 0.3), (2.0, 0.9))
        models.append(bench.best_shape(shapes, lambda p, t: partner_scales(strengths, p, t)))
    error, kernel, noise = min((m for m in models if m), key=lambda each: each[0])
    if isinstance(kernel, Products):
        found = bench.tried(kernel, [1e-6, 1e-1])
        if found and found[0] < error:
            error, noise = found[0], found[1]
    return (kernel, noise, error, linear[0]) if error < linear[0] else None


# --- the fits ---


def linear_fit(sides, players, total, halves):
    """The weighted least squares fit of an additive game whose values sum to `total`; exact for all pairs."""
    if players == 1:
        return [total]
    number = {s: sum(len(side) == s for side in sides) for s in range(players)}
    weights = []
    for side in sides:
        s = len(side)
        weights.append((0.5 if 2 * s == players else 1.0) / (s * (players - s) * number[s]))
    scale = len(weights) / sum(weights)
    even = total / players
    a, b = [[0.0] * players for _ in range(players)], [0.0] * players
    for side, half, weight in zip(sides, halves, weights):
        z = signs_of(side, players)
        wanted = scale * weight * (2 * half - even * sum(z))
        b = [x + wanted * sign for x, sign in zip(b, z)]
        for i in range(players):
            a[i] = [x + scale * weight * z[i] * sign for x, sign in zip(a[i], z)]
    level = sum(a[i][i] for i in range(players)) / players
    means = [sum(row) / players for row in a]
    overall = sum(means) / players
    for i in range(players):
        a[i] = [a[i][j] + overall - means[i] - means[j] + level / players for j in range(players)]
    lower = cholesky(a)
    assert lower, "the pairs do not determine the additive game"
    centred = lambda x: [each - sum(x) / players for each in x]
    return [even + each for each in centred(solve(lower, centred(b)))]


def fit_of(matrix, noise, rows, data):
    """The linear coefficients β, the coefficients α of the kernel, and the diagonal of A; None if undetermined."""
    n, lower = len(rows[0]), cholesky(with_noise(matrix, noise))
    if lower is None:
        return None
    columns, rest = [forward(lower, [z[i] for z in rows]) for i in range(n)], forward(lower, data)
    small = cholesky([[dot(x, y) for y in columns] for x in columns])
    if small is None:
        return None
    beta = solve(small, [dot(column, rest) for column in columns])
    for b, column in zip(beta, columns):
        rest = [x - b * y for x, y in zip(rest, column)]
    alpha = backward(lower, rest)
    solved = [backward(lower, column) for column in columns]
    inverse = inverse_diagonal(lower)
    for k in range(len(rows)):
        row = [column[k] for column in solved]
        inverse[k] -= dot(row, solve(small, row))
    return beta, alpha, inverse


def scores(worth, seed, players, pairs):
    """The members' scores from the values of coalitions, in nats. `worth(coalition)` is a value."""
    full = frozenset(range(players))
    sides = draw_pairs(seed, players, pairs * players)
    both = [(worth(side), worth(full - side)) for side in [full, *sides]]
    odd, even = [(a - b) / 2 for a, b in both], [(a + b) / 2 for a, b in both]
    total = 2 * odd[0]
    if len(sides) < 2 ** (players - 1) - 1:
        rows = [signs_of(side, players) for side in [full, *sides]]
        chosen = choose_prior(rows, odd, even)
        fitted = chosen and interaction_scores(chosen, rows, odd, total, sides)
        if fitted:
            return fitted
    return linear_fit(sides, players, total, odd[1:])


def interaction_scores(chosen, rows, odd, total, sides):
    kernel, noise, error, linear_error = chosen
    players, made = len(rows[0]), gram(kernel, True, rows)
    fit = made and fit_of(made[0], noise, rows, odd)
    if not fit:
        return None
    beta, alpha, inverse = fit
    values = [2 * b for b in beta]
    for a, z in zip(alpha, rows):
        values = [v + a * made[1] * x for v, x in zip(values, kernel.values(z))]
    missing = (total - sum(values)) / players
    values = [v + missing for v in values]
    if error > linear_error / 2 and len(sides) >= 10 * players:
        rest = linear_fit(sides, players, 0.0, [alpha[k] / inverse[k] for k in range(1, len(rows))])
        values = [v + r for v, r in zip(values, rest)]
    return values
