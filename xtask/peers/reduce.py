"""Reductions of one vector of float32 to rank 0, by Open MPI through mpi4py or by torch.distributed on Gloo.

usage: mpirun -np 4 python3 reduce.py mpi ELEMENTS…
       PYTHONPATH=PACKAGES python3 -m torch.distributed.run --nproc-per-node 4 reduce.py torch ELEMENTS…

Each rank has a vector of its number plus one. A barrier precedes each reduction. Rank 0 prints one line of JSON: for
each operation and number of elements the median of the seconds that the operation takes on rank 0.
"""

import json
import statistics
import sys
import time

import numpy

TURNS = 15


def timed(barrier, fill, reduce, check):
    seconds = []
    for _ in range(TURNS):
        fill()
        barrier()
        begun = time.perf_counter()
        reduce()
        seconds.append(time.perf_counter() - begun)
        check()
    return statistics.median(seconds)


def by_mpi(sizes):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    rows = []
    for elements in sizes:
        own = numpy.zeros(elements, dtype=numpy.float32)
        total = numpy.zeros(elements, dtype=numpy.float32)

        def check():
            assert rank > 0 or (total == size * (size + 1) / 2).all()

        for name, reduce in [
            ("Open MPI Reduce", lambda: world.Reduce(own, total, op=MPI.SUM, root=0)),
            ("Open MPI Allreduce", lambda: world.Allreduce(own, total, op=MPI.SUM)),
        ]:
            seconds = timed(world.Barrier, lambda: own.fill(rank + 1), reduce, check)
            rows.append({"operation": name, "elements": elements, "seconds": seconds})
    return rank, rows


def by_torch(sizes):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = []
    for elements in sizes:
        vector = torch.zeros(elements)

        def check():
            assert rank > 0 or bool((vector == size * (size + 1) / 2).all())

        for name, reduce in [
            ("c10d reduce", lambda: dist.reduce(vector, dst=0)),
            ("c10d all_reduce", lambda: dist.all_reduce(vector)),
        ]:
            seconds = timed(dist.barrier, lambda: vector.fill_(rank + 1), reduce, check)
            rows.append({"operation": name, "elements": elements, "seconds": seconds})
    dist.destroy_process_group()
    return rank, rows


def main():
    kind, sizes = sys.argv[1], [int(word) for word in sys.argv[2:]]
    rank, rows = {"mpi": by_mpi, "torch": by_torch}[kind](sizes)
    if rank == 0:
        print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
