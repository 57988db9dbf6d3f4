"""Steps of PyTorch whose saved tensors are in mapped files, which the system loads on demand, or those of a
GPU in the memory of its host.

usage: PYTHONPATH=PACKAGES python3 paging.py MODEL --batch N --steps N [--folder DIR]
           [--device cpu|cuda [--host]]

models.py must be in the same folder. Without --folder and --host the tensors are in memory. Prints one JSON
line: milliseconds of a step, the mean of the faster half.
"""

import argparse
import contextlib
import itertools
import json
import os
import time

import torch

import models


def mapped(folder, parameters):
    """Hooks by which tensors other than parameters are copied to files of their own."""
    numbers = itertools.count()

    def pack(tensor):
        if tensor.data_ptr() in parameters:
            return tensor
        path = os.path.join(folder, str(next(numbers)))
        copy = torch.from_file(path, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        os.unlink(path)
        copy.copy_(tensor.reshape(-1))
        return copy.view(tensor.shape)

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--host", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    name, model, inputs, labels, _ = next(row for row in models.models() if row[0] == options.model)
    rows = torch.arange(options.batch) % models.ROWS
    x, y = inputs[rows].to(options.device), None if labels is None else labels[rows].to(options.device)
    model.to(options.device)
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=models.RATE)
    times = []
    for _ in range(options.steps + 1):
        begun = time.perf_counter()
        parameters = {each.data_ptr() for each in model.parameters()}
        hooks = contextlib.nullcontext()
        if options.host:
            hooks = torch.autograd.graph.save_on_cpu(pin_memory=True)
        elif options.folder:
            hooks = mapped(options.folder, parameters)
        with hooks:
            loss = models.loss_of(model(x), x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.isfinite(loss).item()
        times.append(time.perf_counter() - begun)
    times = sorted(times[1:])[:(options.steps + 1) // 2]
    print(json.dumps({"milliseconds": 1000 * sum(times) / len(times)}))


if __name__ == "__main__":
    main()
