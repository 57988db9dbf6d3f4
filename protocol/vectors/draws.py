"""The random numbers of the valuation, as docs/protocol.md states them: ChaCha20 with a seed of 64 bits."""

MASK = 2**32 - 1


def rotated(x, by):
    return ((x << by) | (x >> (32 - by))) & MASK


def key_of_seed(seed):
    """Eight 32-bit words of PCG32 (XSH RR), which turn the seed of 64 bits into a key."""
    words, state = [], seed
    for _ in range(8):
        state = (state * 6364136223846793005 + 11634580027462260723) % 2**64
        mixed = (((state >> 18) ^ state) >> 27) & MASK
        turn = state >> 59
        words.append(((mixed >> turn) | (mixed << (-turn % 32))) & MASK)
    return words


def block(key, counter, stream):
    """Sixteen words of ChaCha20 with a counter and a stream of 64 bits each."""
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key]
    start += [counter & MASK, counter >> 32, stream & MASK, stream >> 32]
    x = list(start)

    def quarter(a, b, c, d):
        for left, right, other, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[left] = (x[left] + x[right]) & MASK
            x[other] = rotated(x[other] ^ x[left], by)

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for first in range(4):
            quarter(first, (first + 1) % 4 + 4, (first + 2) % 4 + 8, (first + 3) % 4 + 12)
    return [(a + b) & MASK for a, b in zip(x, start)]


class Stream:
    def __init__(self, seed, stream):
        self.key, self.stream, self.counter, self.words = key_of_seed(seed), stream, 0, []

    def number(self):
        """The next 64 bits, the lower half first."""
        if not self.words:
            self.words = block(self.key, self.counter, self.stream)
            self.counter += 1
        low, high = self.words[:2]
        del self.words[:2]
        return low | high << 32

    def below(self, bound):
        while True:
            number = self.number()
            if number < 2**64 // bound * bound:
                return number % bound

    def shuffle(self, items):
        for last in range(len(items) - 1, 0, -1):
            other = self.below(last + 1)
            items[last], items[other] = items[other], items[last]

    def permutation(self, count):
        order = list(range(count))
        self.shuffle(order)
        return order

    def subset(self, universe, size):
        """A random subset (Floyd)."""
        chosen = set()
        for last in range(universe - size, universe):
            candidate = self.below(last + 1)
            chosen.add(last if candidate in chosen else candidate)
        return chosen
