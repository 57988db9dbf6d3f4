"""Steps of PyTorch's torch.distributed.pipelining on Gloo, 1F1B, one thread for each process, on the models
of models.py, which must be in the same folder.

usage: PYTHONPATH=PACKAGES python3 -m torch.distributed.run --nproc-per-node N pipelining.py MODEL
           --batch N --micro-batches N [--steps N]

The model is cut into as many parts as there are processes, with the same number of blocks each. Rank 0
prints one JSON line: milliseconds of a step, the fastest of several repeats.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import models


def seconds_of(block, x):
    """Seconds of a forward and a backward pass, the fastest of several, and the output."""
    best = float("inf")
    for _ in range(models.REPEATS):
        begun = time.perf_counter()
        y = block(x.detach().requires_grad_(True))
        y.sum().backward()
        best = min(best, time.perf_counter() - begun)
    return best, y.detach()


def parts_of(model, x, count):
    """Consecutive blocks of a sequence, whose times are as equal as a walk from the front makes them."""
    seconds = []
    for block in model:
        own, x = seconds_of(block, x)
        seconds.append(own)
    parts, own, left = [[]], 0.0, sum(seconds)
    for block, cost in zip(model, seconds):
        more = count - len(parts)
        if more and parts[-1] and own + cost / 2 > left / (more + 1):
            left -= own
            parts.append([])
            own = 0.0
        parts[-1].append(block)
        own += cost
    return [torch.nn.Sequential(*part) for part in parts]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    name, model, inputs, labels, _ = next(row for row in models.models() if row[0] == options.model)
    rows = torch.arange(options.batch) % len(inputs)
    x, y = inputs[rows], labels[rows]
    parts = parts_of(model.train(), x[:options.batch // options.micro_batches], size)
    cut = torch.tensor([len(part) for part in parts])
    dist.broadcast(cut, 0)
    ends = cut.cumsum(0).tolist()
    own = torch.nn.Sequential(*list(model)[([0] + ends)[rank]:ends[rank]])
    stage = PipelineStage(own, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, options.micro_batches, loss_fn=torch.nn.functional.cross_entropy)
    trained = list(own.parameters())
    optimizer = torch.optim.SGD(trained, lr=models.RATE) if trained else None
    best = float("inf")
    for repeat in range(models.REPEATS + 1):
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(options.steps):
            if optimizer:
                optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            elif rank == size - 1:
                schedule.step(target=y)
            else:
                schedule.step()
            if optimizer:
                optimizer.step()
        dist.barrier()
        if repeat > 0:
            best = min(best, (time.perf_counter() - begun) / options.steps)
    if rank == 0:
        print(json.dumps({"name": f"{name}: PyTorch pipelining, {size} parts", "value": 1000 * best, "unit": "ms/step"}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
