"""The public baseline: training in binary32, bit for bit, after a productive round. Two binary32 numbers are added or
multiplied in binary64 and rounded once, which is the operation in binary32."""

import struct
from math import isfinite, log, sqrt

from aggregation import norm, round32 as r
from draws import Stream

ORDER = 1 << 32


def bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def expf(x):
    """`expf` of FreeBSD's msun, which the crate `libm` ports: one rounding after each operation."""
    high, negative = bits(x) & 0x7FFFFFFF, x < 0
    if high > 0x3EB17218:
        if high >= 0x42CFF1B5 and negative:
            return 0.0
        if high > 0x3F851592:
            k = int(r(r(r(1.4426950216) * x) + (-0.5 if negative else 0.5)))
        else:
            k = -1 if negative else 1
        low = r(k * r(1.4286067653e-06))
        start = r(x - r(k * r(6.9314575195e-01)))
        x = r(start - low)
    elif high > 0x39000000:
        k, start, low = 0, x, 0.0
    else:
        return r(1 + x)
    square = r(x * x)
    c = r(x - r(square * r(r(1.6666625440e-1) + r(square * r(-2.7667332906e-3)))))
    y = r(1 + r(r(r(r(x * c) / r(2 - c)) - low) + start))
    return r(y * 2.0**k)


def chain(start, products):
    """start + a · b + …, each product and each sum rounded."""
    for a, b in products:
        start = r(start + r(a * b))
    return start


def gradient(network, params, rows):
    """The gradient of the mean cross-entropy of a batch, and the batch's loss."""
    layers = [(weights, list(biases)) for weights, biases in network.layers(params)]
    share, inputs_of, pulls_of, loss = r(1 / len(rows)), [], [], 0.0
    for features, label in rows:
        inputs, x = [], features
        for weights, biases in layers:
            inputs.append(x)
            logits = [chain(b, zip(row, x)) for row, b in zip(weights, biases)]
            x = [max(v, 0.0) for v in logits]
        top = max(logits)
        parts = [expf(r(v - top)) for v in logits]
        total = 0.0
        for part in parts:
            total = r(total + part)
        loss += log(total) + r(top - logits[label])
        pulls = [r(part / total) for part in parts]
        pulls[label] = r(pulls[label] - 1)
        inputs_of.append(inputs)
        pulls_of.append([r(pull * share) for pull in pulls])
    found = []
    for at in reversed(range(len(layers))):
        weights, biases = layers[at]
        taken = [inputs[at] for inputs in inputs_of]
        slopes = [
            chain(0.0, ((pulls[o], x[i]) for pulls, x in zip(pulls_of, taken)))
            for o in range(len(biases)) for i in range(len(taken[0]))
        ]
        slopes += [chain(0.0, ((pulls[o], 1.0) for pulls in pulls_of)) for o in range(len(biases))]
        found = slopes + found
        pulls_of = [
            [chain(0.0, ((p, row[i]) for p, row in zip(pulls, weights))) if x[i] > 0 else 0.0 for i in range(len(x))]
            for pulls, x in zip(pulls_of, taken)
        ]
    return found, loss / len(rows)


def train(round, start, rows):
    """The parameters after the training; None if it diverges."""
    rules, epochs = round.task["training"], round.task["rounds"]["baseline_epochs"]
    number = {name: float(rules[name]) for name in ("learning_rate", "weight_decay", "clip_gradient")}
    rate, momentum, decay, pull = (
        r(float(rules[name])) for name in ("learning_rate", "momentum", "weight_decay", "fedprox")
    )
    optimizer, warmup, step = rules["optimizer"], rules["warmup_steps"], 0
    params, velocity, second = list(start), [0.0] * len(start), [0.0] * len(start)
    for epoch in range(epochs):
        order = Stream(round.seed, ORDER + epoch).permutation(len(rows))
        for at in range(0, len(rows), rules["batch"]):
            slopes, loss = gradient(round.network, params, [rows[k] for k in order[at : at + rules["batch"]]])
            if not isfinite(loss):
                return None
            if pull > 0:
                slopes = [r(g + r(pull * r(w - w0))) for g, w, w0 in zip(slopes, params, start)]
            size = norm(slopes)
            if number["clip_gradient"] > 0 and size > number["clip_gradient"]:
                scale = r(number["clip_gradient"] / size)
                slopes = [r(g * scale) for g in slopes]
            step += 1
            rate = number["learning_rate"] * (min(1.0, step / warmup) if warmup else 1.0)
            if optimizer["kind"] == "sgd":
                rate = r(rate)
                velocity = [r(r(momentum * v) + r(g + r(decay * w))) for v, g, w in zip(velocity, slopes, params)]
                params = [r(w - r(rate * v)) for w, v in zip(params, velocity)]
                continue
            beta1, beta2 = float(optimizer["beta1"]), float(optimizer["beta2"])
            if optimizer["kind"] == "adamw":
                params = [r(w * r(1.0 - rate * number["weight_decay"])) for w in params]
            else:
                slopes = [r(g + r(decay * w)) for g, w in zip(slopes, params)]
            retained, share, share2 = r(beta2), r(1.0 - beta1), r(1.0 - beta2)
            root, epsilon = r(sqrt(1.0 - beta2**step)), r(1e-8)
            rate = r(rate / (1.0 - beta1**step))
            velocity = [r(m + r(share * r(g - m))) for m, g in zip(velocity, slopes)]
            second = [r(r(retained * s) + r(r(share2 * g) * g)) for s, g in zip(second, slopes)]
            params = [
                r(w - r(r(rate * m) / r(r(r(sqrt(s)) / root) + epsilon)))
                for w, m, s in zip(params, velocity, second)
            ]
    return params if all(map(isfinite, params)) else None


def after_baseline(round, earlier, params, loss):
    """The model after the step of the public baseline, and the record of the step."""
    own, found = round.network.rows, {}
    record = {"rows": len(earlier) + len(own), "loss_before_nano": loss(params), "validation_loss_nano": None}
    for fold in (0, 1):
        trained = train(round, params, earlier + [row for at, row in enumerate(own) if at % 2 != fold])
        if trained:
            for at in range(fold, len(own), 2):
                found[at] = round.network.evaluate(trained, *own[at])[0]
    if len(found) == len(own):
        order = [*range(0, len(own), 2), *range(1, len(own), 2)]
        record["validation_loss_nano"] = round_nano([found[at] for at in order])
    if record["validation_loss_nano"] is None or record["validation_loss_nano"] >= record["loss_before_nano"]:
        return params, record
    trained = train(round, params, earlier + own)
    if trained and loss(trained) < record["loss_before_nano"]:
        return trained, record
    return params, {**record, "validation_loss_nano": None}


def round_nano(losses):
    return round(sum(losses) / len(losses) * 1e9)
