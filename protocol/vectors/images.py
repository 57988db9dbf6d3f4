"""The features of an image, in binary64 with one rounding to binary32 (docs/protocol.md, "Encoding")."""

import math
import struct


def window(source, size, at):
    """The first pixel of the source that a pixel of the result has, and the weights from it on."""
    scale = source / size
    support = max(scale, 1.0)
    centre = (at + 0.5) * scale
    first = max(math.floor(centre - support), 0)
    end = min(math.ceil(centre + support), source)
    weights = [max(1.0 - abs((pixel + 0.5 - centre) / support), 0.0) for pixel in range(first, end)]
    total = 0.0
    for weight in weights:
        total += weight
    return first, [weight / total for weight in weights]


def resized(line, size, start, count):
    """The pixels from start on of a line that is resized to size pixels."""
    out = []
    for at in range(start, start + count):
        first, weights = window(len(line), size, at)
        total = 0.0
        for weight, value in zip(weights, line[first:]):
            total += weight * value
        out.append(total)
    return out


def image_features(encoding, pixels):
    sides = [len(pixels), len(pixels[0])]
    wanted = [encoding["height"], encoding["width"]]
    resize = encoding["resize"]
    scaled = wanted if resize is None else [side * resize // min(sides) for side in sides]
    start = [(side - part) // 2 for side, part in zip(scaled, wanted)]
    features = []
    for channel, number in enumerate(encoding["channels"]):
        if len(encoding["channels"]) == 1:
            values = [[(299.0 * r + 587.0 * g + 114.0 * b) / 1000.0 for r, g, b in row] for row in pixels]
        else:
            values = [[float(pixel[channel]) for pixel in row] for row in pixels]
        narrow = [resized(row, scaled[1], start[1], wanted[1]) for row in values]
        columns = [resized(column, scaled[0], start[0], wanted[0]) for column in zip(*narrow)]
        offset, factor = float(number["offset"]), float(number["factor"])
        features += [(value - offset) * factor for row in zip(*columns) for value in row]
    return features


def check_image(v):
    features = image_features(v["encoding"]["images"], v["pixels"])
    raw = struct.pack(f"<{len(features)}f", *features).hex()
    assert raw == v["row"], f"ours {raw}, theirs {v['row']}"
