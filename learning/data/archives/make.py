"""Writes small models that are hard to read, to write back or to evaluate, and one of peft.

    pip install ../../../python torch==2.11.0 peft==0.21.2 safetensors
    FLORIN=… python make.py [NAME …]

Beside lora.pt2, lora.safetensors has tokens, their loss, and the matrices B after a step of SGD that trains
them alone.
"""

import sys

import florin
import torch
from torch import nn
from torch.nn import functional as F


class Shared(nn.Module):
    """Two parameters that are views of one storage."""

    def __init__(self):
        super().__init__()
        both = torch.randn(24)
        self.weight, self.bias = nn.Parameter(both[:20].view(4, 5).t()), nn.Parameter(both[20:])

    def forward(self, x):
        return x @ self.weight + self.bias


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Alias(nn.Module):
    """It changes a parameter through a view."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        self.linear.weight.detach().mul_(1.01)
        return self.linear(x)


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y + torch.randn_like(y)


class Probability(nn.Module):
    """Its last operator refuses values beyond 0 and 1: parameters decide whether it runs."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        p = torch.sigmoid(x[:, :1]) * self.scale
        return F.binary_cross_entropy(p, (x[:, 1:2] > 0).float(), reduction="none")


def channels_last():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(4, 3),
    ).to(memory_format=torch.channels_last)


def instance_norm():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(12, 3)
    )


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(17, 8), nn.Linear(8, 8), nn.Linear(8, 17)

    def forward(self, x):
        return self.second(torch.tanh(self.first(self.words(x)).cumsum(1)))


def lora():
    """Low-rank adapters by peft. Their matrices B start at zero, which hides A; here they do not."""
    import peft

    config = peft.LoraConfig(r=2, target_modules=["first", "second"])
    model = peft.get_peft_model(Words(), config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_B" in name)
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return Plain(model)


class Plain(nn.Module):
    """A model with one argument: those of peft take any."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def write_lora():
    from safetensors.torch import save_file

    model, tokens = lora().train(), torch.randint(0, 17, (4, 6))
    florin.export(model, tokens, "lora.pt2")
    loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    after = {name: each.detach().add(each.grad, alpha=-0.5) for name, each in trained.items()}
    save_file({"tokens": tokens.float(), "loss": loss.detach().reshape(1), **after}, "lora.safetensors")


torch.manual_seed(1)
row, image = torch.randn(3, 4), torch.randn(3, 1, 4, 4)
for name, model, example in [
    ("shared", Shared(), torch.randn(3, 5)),
    ("tied", Tied(), row),
    ("alias", Alias(), row),
    ("random", Random(), row),
    ("probability", Probability(), row),
    ("channels_last", channels_last(), image),
    ("instance_norm", instance_norm(), image),
]:
    if name in sys.argv[1:] or not sys.argv[1:]:
        florin.export(model, example, f"{name}.pt2")
if "lora" in sys.argv[1:] or not sys.argv[1:]:
    write_lora()
