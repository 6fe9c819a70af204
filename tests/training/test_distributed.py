"""Two workers under torchrun, on this machine, with gloo: the weights of one process with the same global batch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import polybound as pb
from polybound.data import load_digits

OPTIONS = {"bound": [0.8, 2.0], "epochs": 2, "start": 1, "learning_rate": 0.02, "seed": 5}
MODELS = {"pn-4": {"optimiser": "adamw", "learning_rate": 0.002}, "ncp-4": {"optimiser": "momentum"}, "pn-conv": {}}
CHILD = """
import sys
sys.path[:0] = [sys.argv[2], f"{sys.argv[2]}/training"]
import torch
torch.set_num_threads(1)
import polybound as pb
from polybound.training import worker_number, start_workers, stop_workers, workers
from test_distributed import MODELS, OPTIONS
assert start_workers() and workers() == 2
data = pb.data.load_digits("train")
for name, optimiser in MODELS.items():
    model = pb.paper_model(name, shape=data.shape, runs=2, seed=0, rank=4)
    pb.fit(model, data, method="projection", adversary="fgsm-0.1", **OPTIONS | optimiser)
    if worker_number() == 0:
        model.save(f"{sys.argv[1]}/{name}.safetensors")
stop_workers()
"""


@pytest.mark.slow
def test_two_workers_give_the_weights_of_one(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        str(tmp_path),
        str(Path(__file__).parents[1]),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    data = load_digits("train")
    for name, optimiser in MODELS.items():
        model = pb.paper_model(name, shape=data.shape, runs=2, seed=0, rank=4)
        pb.fit(model, data, method="projection", adversary="fgsm-0.1", **OPTIONS | optimiser)
        together = pb.load(tmp_path / f"{name}.safetensors")
        for key, tensor in model.state_dict().items():
            torch.testing.assert_close(together.state_dict()[key], tensor, rtol=1e-3, atol=1e-4)
