"""Losses and gradients of softmax regression and of MLPs, in binary64."""

from math import exp, log

from blobs import shapes, size_of


class Network:
    """A model and the rows that evaluate it."""

    def __init__(self, model, rows):
        self.model, self.rows = model, rows
        self.floor = 1 / model["classes"] ** 2

    def layers(self, params):
        at = 0
        for name, shape in shapes(self.model):
            if name.endswith("bias"):
                yield weights, params[at : at + shape[0]]
            else:
                weights = [params[at + i * shape[1] : at + (i + 1) * shape[1]] for i in range(shape[0])]
            at += size_of(shape)

    def forward(self, params, features):
        """The inputs of each layer, and the logits."""
        inputs, x = [], features
        for weights, biases in self.layers(params):
            inputs.append(x)
            logits = [b + sum(w * v for w, v in zip(row, x)) for row, b in zip(weights, biases)]
            x = [max(v, 0.0) for v in logits]
        return inputs, logits

    def evaluate(self, params, features, label):
        """The bounded loss of a row, its derivative by each logit, and the inputs of the layers."""
        inputs, logits = self.forward(params, features)
        top = max(logits)
        parts = [exp(x - top) for x in logits]
        shares = [part / sum(parts) for part in parts]
        share = (1 - self.floor) * shares[label]
        pulls = [x - (k == label) for k, x in enumerate(shares)]
        bounded = share + self.floor
        return -log(bounded), [share / bounded * pull for pull in pulls], inputs

    def losses(self, params):
        return [self.evaluate(params, *row)[0] for row in self.rows]

    def correct(self, params):
        hits = 0
        for features, label in self.rows:
            logits = self.forward(params, features)[1]
            hits += logits.index(max(logits)) == label
        return hits

    def row_gradient(self, params, features, label):
        _, pulls, inputs = self.evaluate(params, features, label)
        parts = []
        for (weights, _), x in reversed(list(zip(self.layers(params), inputs))):
            parts.append([pull * v for pull in pulls for v in x] + pulls)
            back = [sum(pull * row[i] for pull, row in zip(pulls, weights)) for i in range(len(x))]
            # The derivative of a ReLU is 0 where its output is 0.
            pulls = [b if v > 0 else 0.0 for b, v in zip(back, x)]
        return [x for part in reversed(parts) for x in part]
