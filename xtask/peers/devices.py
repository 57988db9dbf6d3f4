"""Steps of PyTorch's DistributedDataParallel on Gloo, one thread for each process, on the models of
models.py, which must be in the same folder.

usage: PYTHONPATH=PACKAGES python3 -m torch.distributed.run --nproc-per-node N devices.py MODEL [--steps N]

Rank 0 prints one JSON line: milliseconds of a step, the fastest of several repeats.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import models


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    name, model, inputs, labels, batch = next(row for row in models.models() if row[0] == options.model)
    model = DistributedDataParallel(model.train())
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=models.RATE)
    best = float("inf")
    for repeat in range(models.REPEATS + 1):
        dist.barrier()
        begun, done = time.perf_counter(), 0
        while done < options.steps:
            order = torch.randperm(models.ROWS, generator=torch.Generator().manual_seed(done))
            for start in range(0, models.ROWS, batch):
                own = order[start + rank * batch // size:start + (rank + 1) * batch // size]
                x = inputs[own]
                loss = models.loss_of(model(x), x, None if labels is None else labels[own])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                assert torch.isfinite(loss).item()
                done += 1
        dist.barrier()
        if repeat > 0:
            best = min(best, (time.perf_counter() - begun) / done)
    if rank == 0:
        print(json.dumps({"name": f"{name}: PyTorch DDP, {size} processes", "value": 1000 * best, "unit": "ms/step"}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
