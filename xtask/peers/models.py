"""Exports four models and times their training steps in PyTorch.

`florin-bench models` trains the same files on the same rows with as many threads: a perceptron, a
residual network and a small GPT, also with low-rank adapters, plain SGD, cross-entropy.

usage: PYTHONPATH=PACKAGES python3 models.py FOLDER [--threads N] [--steps N] [--device cpu|cuda]
           [--compile] [--export] [--large]

With --export, FOLDER receives NAME.pt2, NAME.f32 (the rows), NAME.u32 (their labels) and NAME.json;
with --large of one model with 100 million numbers.
Without it, prints one JSON line per row: milliseconds of a step.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

ROWS, RATE, REPEATS = 64, 0.01, 5


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + self.skip(x))


def resnet():
    """ResNet-20 for images of 32 by 32 (K. He et al., 2016)."""
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for outputs, stride in [(16, 1), (32, 2), (64, 2)]:
        for at in range(3):
            layers.append(Block(inputs, outputs, stride if at == 0 else 1))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Layer(nn.Module):
    def __init__(self, width, heads, rank):
        super().__init__()
        self.heads, self.rank = heads, rank
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        if rank:
            # Low-rank adaptation (E. Hu et al., 2021): B starts at zero.
            self.lora_a, self.lora_b = nn.Linear(width, rank, bias=False), nn.Linear(rank, 3 * width, bias=False)
            nn.init.zeros_(self.lora_b.weight)

    def forward(self, x):
        rows, tokens, width = x.shape
        y = self.norm1(x)
        mixed = self.mix(y) + self.lora_b(self.lora_a(y)) if self.rank else self.mix(y)
        q, k, v = mixed.view(rows, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, tokens, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, words=256, width=128, layers=4, heads=4, tokens=64, rank=0):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.layers = nn.Sequential(*(Layer(width, heads, rank) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.register_buffer("order", torch.arange(tokens))

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.words(tokens) + self.places(self.order))))


def models():
    """Name, model, one batch of inputs, labels (none for tokens), and rows of a step."""
    generator = torch.Generator().manual_seed(3)
    numbers = lambda *sizes: torch.randn(sizes, generator=generator)
    labels = torch.randint(0, 10, (ROWS,), generator=generator)
    torch.manual_seed(1)
    mlp = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    yield "mlp", mlp, numbers(ROWS, 784), labels, 64
    yield "resnet", resnet(), numbers(ROWS, 3, 32, 32), labels, 32
    tokens = torch.randint(0, 256, (ROWS, 64), generator=generator)
    yield "gpt", Gpt(), tokens, None, 16
    adapted = Gpt(rank=8)
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_("lora_b" in name)
    yield "gpt_lora", adapted, tokens, None, 16


def large():
    """A perceptron with 99.96 million numbers, and four rows."""
    widths = [784, 4900, 4900, 4900, 4900, 4900]
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    yield "large", nn.Sequential(*layers, nn.Linear(4900, 10)), torch.randn(4, 784), torch.arange(4), 4


def loss_of(logits, inputs, labels):
    if labels is None:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())
    return F.cross_entropy(logits, labels)


def export(folder, chosen):
    for name, model, inputs, labels, batch in chosen:
        rows = torch.export.Dim("rows")
        program = torch.export.export(model.train(), (inputs,), dynamic_shapes=({0: rows},))
        torch.export.save(program, folder / f"{name}.pt2")
        flat = inputs.flatten(1).to(torch.float32)
        (folder / f"{name}.f32").write_bytes(bytes(flat.contiguous().view(torch.uint8).flatten().tolist()))
        own = torch.zeros(len(inputs), dtype=torch.int32) if labels is None else labels.to(torch.int32)
        (folder / f"{name}.u32").write_bytes(bytes(own.view(torch.uint8).flatten().tolist()))
        trained = "*lora_b*" if name == "gpt_lora" else "*"
        about = {"rows": len(inputs), "batch": batch, "tokens": labels is None, "trained": trained}
        (folder / f"{name}.json").write_text(json.dumps(about))


def milliseconds(model, inputs, labels, batch, options):
    """The fastest of several repeats of `steps` steps, after a warm-up."""
    device = torch.device(options.device)
    model, inputs = model.train().to(device), inputs.to(device)
    labels = None if labels is None else labels.to(device)
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=RATE)
    best = float("inf")
    for repeat in range(REPEATS + 1):
        begun, done = time.perf_counter(), 0
        while done < options.steps:
            order = torch.randperm(ROWS, device=device)
            for start in range(0, ROWS, batch):
                chosen = order[start:start + batch]
                x = inputs[chosen]
                loss = loss_of(run(x), x, None if labels is None else labels[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                # Both programs stop at a loss that is not finite.
                assert torch.isfinite(loss).item()
                done += 1
        seconds = time.perf_counter() - begun
        if repeat > 0:
            best = min(best, seconds / done)
    return 1000 * best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.export:
        export(options.folder, large() if options.large else models())
        return
    kind = "torch.compile" if options.compile else "eager"
    for name, model, inputs, labels, batch in models():
        value = milliseconds(model, inputs, labels, batch, options)
        print(json.dumps({"name": f"{name}: PyTorch {kind}", "value": value, "unit": "ms/step"}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
