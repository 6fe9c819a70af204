"""Sweeps that lose their process or their workers end with the same results."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from polybound.experiments.experiment import find_experiment
from polybound.experiments.jobs import run_of
from polybound.experiments.results import collect
from polybound.experiments.sweep import sweep

RECIPE = """
title = "Small"
datasets = ["digits"]
methods = ["none", "projection"]
bounds = [100.0, 1.0, 0.5]
attacks = ["fgsm-0.1", "pgd-0.1-20-0.01"]
seeds = 3
limit = 100

[recipe]
epochs = 40
start = 10
milestones = [10, 30]
learning_rate = 0.02
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def undisturbed(file, tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    sweep([find_experiment(str(file))], root, workers=1)
    return everything(file, root)


def everything(file, root):
    """All scores and the bytes of all models."""
    experiment = find_experiment(str(file))
    weights = [run_of(entry.plan, root).model_file.read_bytes() for entry in experiment.entries()]
    return collect(experiment, root), weights


def written(root):
    """The files of a folder with the times of their last change."""
    times = {}
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):  # a file that has just got its name
            times[path] = path.stat().st_mtime_ns
    return times


def test_kill_9_of_a_sweep(file, undisturbed, tmp_path):
    """The whole process group dies, workers and all, at random moments; then the same command again."""
    kills, generator = int(os.environ.get("POLYBOUND_KILLS", "10")), random.Random(1)
    command = [sys.executable, "-m", "polybound", "sweep", str(file), "--runs", str(tmp_path), "--workers", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _ in range(kills):
        before = written(tmp_path)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, start_new_session=True, env=environment, **quiet)
        while written(tmp_path) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(generator.uniform(0.0, 0.5))
        assert process.poll() is None, "the sweep was over before all the kills"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    assert everything(file, tmp_path) == undisturbed
    # A kill in the midst of writing may leave the half of a file, under another name; no checkpoint is left.
    assert not list((tmp_path / ".checkpoints").glob("*.safetensors"))


def kill_once(pids, root):
    """Kill the first of the workers as soon as something has been written to the folder."""

    def wait() -> None:
        while not list(root.glob("*/config.json")):
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(pids()[0], signal.SIGKILL)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's own, about the worker that is gone
def test_a_dask_worker_that_dies(file, undisturbed, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        thread = kill_once(lambda: pids, tmp_path)
        sweep([find_experiment(str(file))], tmp_path, engine="dask", cluster=cluster.scheduler_address)
        thread.join(1.0)
        assert not thread.is_alive()
    assert everything(file, tmp_path) == undisturbed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_worker_that_dies(file, undisturbed, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:

        def pids():
            listed = subprocess.run(["pgrep", "-f", "ray::PoolActor"], capture_output=True, text=True).stdout
            return [int(pid) for pid in listed.split()]

        thread = kill_once(pids, tmp_path)
        sweep([find_experiment(str(file))], tmp_path, engine="ray", workers=2)
        thread.join(1.0)
        assert not thread.is_alive()
    finally:
        ray.shutdown()
    assert everything(file, tmp_path) == undisturbed
