"""Several workers under `torchrun`: each takes its share of every batch, and gradients are summed."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["my_share", "start_workers", "stop_workers", "sum_over_workers", "worker_number", "workers"]


def start_workers() -> bool:
    """Join the other workers if `torchrun` started this process (nccl on CUDA, gloo elsewhere); whether it did."""
    if "RANK" not in os.environ or not dist.is_available():
        return False
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return True


def stop_workers() -> None:
    """Leave the other workers, once all of them are done."""
    if workers() > 1:
        dist.barrier()
        dist.destroy_process_group()


def workers() -> int:
    """How many workers there are, 1 without `torchrun`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def worker_number() -> int:
    """Which worker this is, from 0."""
    return dist.get_rank() if workers() > 1 else 0


def my_share(batch: Tensor) -> Tensor:
    """This worker's part of a batch (groups, samples): every worker gets its own, together they have all."""
    return batch if workers() == 1 else batch[:, worker_number() :: workers()]


def sum_over_workers(tensors: Sequence[Tensor], samples: int) -> list[Tensor]:
    """Sums over all workers' samples, divided by the number of samples: one message for all tensors."""
    if workers() == 1:
        return [tensor / samples for tensor in tensors]
    flat = torch.cat([*(tensor.flatten() for tensor in tensors), tensors[0].new_tensor([float(samples)])])
    dist.all_reduce(flat)
    flat = flat[:-1] / flat[-1]
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]
