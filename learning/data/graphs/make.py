"""Writes the models of this folder, and what PyTorch computes with them.

    pip install ../../../python torch==2.11.0 transformers==4.57.* safetensors
    python make.py [FOLDER [NAME …]]

For each model: NAME.pt2 by `torch.export.save`, and NAME.safetensors with the inputs, the labels, the
loss in training mode, its gradients, and the parameters after ten steps of SGD, all at one thread; of
some models also after ten steps of Adam and AdamW.
"""

import sys
from pathlib import Path

import torch
from florin import strip_paths
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

ROWS, CLASSES, STEPS, RATE, SEED = 5, 3, 10, 0.05, 7


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x):
        y = self.second(F.relu(self.norm(self.first(x)), inplace=True))
        y += x
        return F.relu_(y)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.body = nn.Sequential(Residual(4), nn.MaxPool2d(2), Residual(4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.head(torch.flatten(F.adaptive_avg_pool2d(self.body(self.stem(x)), 1), 1))


class Mobile(nn.Module):
    """Depthwise convolutions, squeeze and excitation, stochastic depth."""

    def __init__(self):
        super().__init__()
        self.grow = nn.Conv2d(1, 8, 1)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze, self.excite = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = F.hardswish(self.grow(x))
        y = F.hardswish(self.depth(x), inplace=True)
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        keep = y.new_empty((y.shape[0], 1, 1, 1)).bernoulli_(0.8)
        x = x + y * keep.div_(0.8)
        return self.head(x.mean([2, 3]))


class ConvNext(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 2, stride=2)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.1))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.patch(x)
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((-2, -1)))


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(c, dim=2)
        q, k, v = (a.view(n, t, self.heads, c // self.heads).transpose(1, 2) for a in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop(self.out(y.transpose(1, 2).contiguous().view(n, t, c)))
        return x + self.mlp(self.ln2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, 8, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 8))
        self.place = nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.block = Block(8, 2, False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.block(x)[:, 0])


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.place = nn.Embedding(17, 8), nn.Embedding(6, 8)
        self.block, self.norm = Block(8, 2, True), nn.LayerNorm(8)

    def forward(self, x):
        x = self.word(x) + self.place(torch.arange(x.shape[1], device=x.device))
        return self.norm(self.block(x)) @ self.word.weight.t()


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.word = nn.Embedding(17, 6)
        self.layer = kind(6, 5, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.head(self.layer(self.word(x))[0][:, -1])


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.inner = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(12, CLASSES, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x):
        a = F.silu(self.norm(self.down(x)))
        b = F.leaky_relu(self.inner(F.avg_pool2d(a, 2)), 0.1)
        c = F.interpolate(b, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(torch.cat([a, self.up(b), c], 1)).mean((2, 3))


class Tabular(nn.Module):
    """Embeddings of categories beside numbers, with a gated layer."""

    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(9)
        self.gate, self.head = nn.Linear(9, 16), nn.Linear(8, CLASSES)

    def forward(self, x):
        kind = x[:, 0].abs().clamp(max=4).to(torch.int64)
        x = torch.cat([self.kinds(kind), x[:, 1:7]], 1)
        return self.head(F.glu(self.gate(self.norm(x)), 1).tanh())


class Temporal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(2 if i == 0 else 4, 4, 3, dilation=2**i) for i in range(2))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x):
        for at, layer in enumerate(self.layers):
            x = F.elu(layer(F.pad(x, (2 * 2**at, 0))))
        return self.head(torch.amax(x, 2))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.channels = nn.Linear(4, 4), nn.Linear(6, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, CLASSES)

    def forward(self, x):
        x = x + self.tokens(self.norm(x).transpose(1, 2)).transpose(1, 2)
        x = x + torch.einsum("btc,dc->btd", F.softplus(self.norm(x)), self.channels.weight)
        return self.head(torch.roll(x, 1, 1).mean(1)) + self.channels.bias.sum()


class Expert(nn.Module):
    """A soft mixture, with sizes computed from the batch."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.Parameter(torch.randn(3, 8, CLASSES) * 0.3)

    def forward(self, x):
        share = F.softmax(self.gate(x), dim=-1)
        n = x.shape[0]
        y = torch.bmm(x.unsqueeze(1).repeat(1, 3, 1).view(n * 3, 1, 8), self.experts.repeat(n, 1, 1))
        return (y.view(n, 3, CLASSES) * share.unsqueeze(-1)).sum(1)


class Depth(nn.Module):
    """Stochastic depth as transformers draws it: numbers that are rounded down."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def drop(self, x):
        gate = 0.6 + torch.rand((x.shape[0], 1), dtype=x.dtype, device=x.device)
        gate.floor_()
        return x.div(0.6) * gate

    def forward(self, x):
        x = x + self.drop(torch.tanh(self.first(x)))
        return self.head(x + self.drop(torch.tanh(self.second(x))))


class Mixture(nn.Module):
    """Experts for groups of rows, with the operator that transformers (5.24) exports."""

    def __init__(self):
        super().__init__()
        import transformers.integrations.moe  # noqa: F401, which defines the operator

        self.gate = nn.Linear(8, 4)
        self.experts = nn.Parameter(torch.randn(4, 8, CLASSES) * 0.3)

    def forward(self, x):
        scores = self.gate(x)
        # The last expert has no row.
        scores = torch.where(torch.arange(4) < 3, scores, float("-inf"))
        share, chosen = F.softmax(scores, dim=-1).max(-1)
        order = torch.argsort(chosen)
        counts = torch.histc(chosen[order].float(), bins=4, min=0, max=3)
        ends = torch.cumsum(counts, 0).to(torch.int32)
        found = torch.ops.transformers.grouped_mm_fallback(x[order], self.experts, ends)
        return found[torch.argsort(order)] * share.unsqueeze(-1)


class Arrange(nn.Module):
    """Joins with an empty tensor, grids, an equation with an ellipsis, a window larger than its image, and a
    weight with a norm of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Parameter(torch.randn(6, 8) * 0.3)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(4, CLASSES))

    def forward(self, x):
        rows, columns = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
        x = torch.cat([torch.tensor([]), x + torch.stack([rows, columns]).sum(0) * 0.1], -2)
        y = torch.einsum("...td,dc->...tc", x, self.inner)
        return self.head(F.avg_pool1d(y, 20, ceil_mode=True).flatten(1))


def transformer(name):
    import transformers as t

    size = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, vocab_size=17,
                intermediate_size=32, max_position_embeddings=16)
    if name == "llama":
        model = t.LlamaForCausalLM(t.LlamaConfig(**size, num_key_value_heads=1, use_cache=False,
                                                 attn_implementation="eager"))
    else:
        model = t.BertForSequenceClassification(t.BertConfig(**size, num_labels=CLASSES))

    class Logits(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(input_ids=x).logits

    return Logits()


def image():
    return torch.randn(ROWS, 1, 8, 8)


def words():
    return torch.randint(0, 17, (ROWS, 6))


def rows(*shape):
    return lambda: torch.randn(ROWS, *shape)


MODELS = {
    "softmax": (lambda: nn.Linear(8, CLASSES), rows(8)),
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, CLASSES)), rows(8)),
    "resnet": (ResNet, image),
    "mobile": (Mobile, image),
    "convnext": (ConvNext, image),
    "vit": (ViT, image),
    "unet": (UNet, image),
    "gpt": (GPT, words),
    "lstm": (lambda: Recurrent(nn.LSTM), words),
    "gru": (lambda: Recurrent(nn.GRU), words),
    "tabular": (Tabular, rows(7)),
    "temporal": (Temporal, rows(2, 9)),
    "mixer": (Mixer, rows(4, 6)),
    "expert": (Expert, rows(8)),
    "depth": (Depth, rows(8)),
    "mixture": (Mixture, rows(8)),
    "arrange": (Arrange, rows(4, 6)),
    "llama": (lambda: transformer("llama"), words),
    "bert": (lambda: transformer("bert"), words),
}


def loss_of(model, x, labels):
    return F.cross_entropy(model(x).flatten(0, -2), labels.flatten())


OPTIMIZERS = {
    "after": lambda them: torch.optim.SGD(them, lr=RATE, foreach=False),
    "adam": lambda them: torch.optim.Adam(them, lr=0.01, betas=(0.8, 0.95), weight_decay=0.01, foreach=False),
    "adamw": lambda them: torch.optim.AdamW(them, lr=0.01, weight_decay=0.1, foreach=False),
}
BY_ALL_OPTIMIZERS = ("softmax", "resnet", "mixer", "tabular")


def train(model, x, labels, optimizer):
    torch.manual_seed(SEED)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, x, labels).backward()
        optimizer.step()


def write(name, folder):
    torch.manual_seed(SEED)
    make, data = MODELS[name]
    model, x = make().train(), data()
    if name in ("llama", "bert"):
        model.model.train()
    shape = model(x).shape
    labels = torch.randint(0, shape[-1], shape[:-1])
    batch = ({0: torch.export.Dim("batch", min=2)},)
    exported = torch.export.export(model, (x,), dynamic_shapes=batch, strict=False)
    torch.export.save(exported, folder / f"{name}.pt2")
    strip_paths(folder / f"{name}.pt2")
    named = dict(model.named_parameters())
    start = {key: value.detach().clone() for key, value in named.items()}
    buffers = {key: value.detach().clone() for key, value in model.named_buffers()}
    torch.manual_seed(SEED)
    loss = loss_of(model, x, labels)
    gradients = torch.autograd.grad(loss, list(named.values()))
    with torch.no_grad():
        for key, value in named.items():
            value.copy_(start[key])
        for key, value in model.named_buffers():
            value.copy_(buffers[key])
    tensors = {"input": x, "labels": labels, "loss": loss.detach().reshape(1)}
    tensors |= {f"gradient.{key}": gradient for key, gradient in zip(named, gradients)}
    for prefix, optimizer in OPTIMIZERS.items():
        if prefix == "after" or name in BY_ALL_OPTIMIZERS:
            train(model, x, labels, optimizer(named.values()))
            tensors |= {f"{prefix}.{key}": value.detach().clone() for key, value in named.items()}
            with torch.no_grad():
                for key, value in [*named.items(), *model.named_buffers()]:
                    value.copy_(start[key] if key in start else buffers[key])
    tensors = {key: value.contiguous().clone() for key, value in tensors.items()}
    save_file(tensors, folder / f"{name}.safetensors")
    print(name, sum(value.numel() for value in named.values()), float(loss))


if __name__ == "__main__":
    torch.set_num_threads(1)
    to = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    for name in sys.argv[2:] or MODELS:
        write(name, to)
