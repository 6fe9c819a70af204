"""Sweeps that lose their process or their workers end with the same results.

Nothing here depends on how fast the machine is: kills wait for files that change, and the work is so long that it
cannot be over before the last kill; should it be over all the same, the test starts over with more of it.
"""

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from helpers.processes import Command


def work(size=1):
    """The arguments of a sweep with a hundred epochs and more, each of which leaves a checkpoint; `size` times longer."""
    bounds = "--bound 100 --bound 1 --bound 0.5"
    words = f"sweep table-1 --dataset digits --model pn-4 --method none --method projection {bounds} --limit 20"
    return [*words.split(), "--seeds", 2 * size, "--samples", 130 * size]


def results(root):
    """What a sweep has found: specs, weights and scores of all runs, without the times that it took."""
    found = {}
    for file in root.glob("[!.]*/[!.]*"):
        if file.suffix == ".safetensors":
            found[file.relative_to(root)] = file.read_bytes()
        elif file.name not in ("history.jsonl", "metrics.jsonl"):
            lines = file.read_text(encoding="utf-8").replace(str(root), "").splitlines()
            found[file.relative_to(root)] = sorted(line.rstrip(",") for line in lines)
    assert sum(path.name == "model.safetensors" for path in found) >= 8
    return found


def undisturbed(cli, root, size=1):
    assert cli(*work(size), "--runs", root, "--workers", 1).code == 0
    return results(root)


@pytest.fixture(scope="module")
def expected(cli, tmp_path_factory):
    return undisturbed(cli, tmp_path_factory.mktemp("undisturbed"))


def state(root):
    """The files of a folder, each with what changes when it is written."""
    found = {}
    for path in root.rglob("*"):
        with suppress(FileNotFoundError):  # a file that has just got its name
            about = path.stat()
            found[path] = (about.st_ino, about.st_size, about.st_mtime_ns)
    return found


def wait_for_changes(root, changes, over):
    """Wait for this number of changes of the files; whether they came before it was over."""
    before = state(root)
    while changes:
        time.sleep(0.001)
        if (now := state(root)) != before:
            before, changes = now, changes - 1
        elif over():
            return False
    return True


def kill_again_and_again(words, root, kills):
    """Start a sweep and kill it after some changes, several times; whether it was never over before its kill."""
    generator = random.Random(1)
    for kill in range(kills):
        command = Command(*words, "--workers", 2 if kill == 1 else 1)  # two are slow to start
        lasted = wait_for_changes(root, generator.randint(1, 60), lambda command=command: not command.running())
        if not (command.kill() and lasted):
            return False
    return True


def test_kill_9_of_a_sweep(cli, expected, tmp_path):
    """The process and all its workers die twice, the second time with two workers; then the same command ends with the same bits."""
    kills, size = int(os.environ.get("POLYBOUND_KILLS", "2")), 1
    while not kill_again_and_again([*work(size), "--runs", tmp_path / str(size)], tmp_path, kills):
        size *= 2
        assert size < 100, "no sweep is long enough: it fails, or it does not go on where it was"
    root = tmp_path / str(size)
    done = cli(*work(size), "--runs", root, "--workers", 1)
    assert done.code == 0, done.err
    assert results(root) == (expected if size == 1 else undisturbed(cli, tmp_path / "undisturbed", size))
    # A kill in the midst of writing may leave the half of a file, under another name; no checkpoint is left.
    assert not list(root.glob(".checkpoints/*.safetensors"))


def kill_once(pids, root):
    """Kill the first of the workers as soon as files have changed a few times."""

    def wait() -> None:
        wait_for_changes(root, 5, lambda: False)
        os.kill(pids()[0], signal.SIGKILL)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask's own, about the worker that is gone
def test_a_dask_worker_that_dies(cli, expected, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        thread = kill_once(lambda: pids, tmp_path)
        done = cli(*work(), "--runs", tmp_path, "--engine", "dask", "--address", cluster.scheduler_address)
        assert done.code == 0, done.err
        thread.join()
    assert results(tmp_path) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_worker_that_dies(cli, expected, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:

        def pids():
            listed = subprocess.run(["pgrep", "-f", "ray::PoolActor"], capture_output=True, text=True).stdout
            return [int(pid) for pid in listed.split()]

        thread = kill_once(pids, tmp_path)
        done = cli(*work(), "--runs", tmp_path, "--engine", "ray", "--workers", 2)
        assert done.code == 0, done.err
        thread.join()
    finally:
        ray.shutdown()
    assert results(tmp_path) == expected
