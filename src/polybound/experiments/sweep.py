"""Run experiments: all jobs that are not done yet, on any number of workers.

Workers share a folder and nothing else: every result is a file with a content address, written atomically. So any
engine will do, a job can be repeated by anyone, and what a dead worker left undone is done again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import joblib
import torch

from polybound.data import missing
from polybound.errors import PolyboundError, check_choice, require
from polybound.evaluation import EvaluationSpec
from polybound.experiments.experiment import Experiment
from polybound.experiments.jobs import Job, StackJob, digests
from polybound.experiments.results import resolve, search_job, studies
from polybound.parallel import in_workers
from polybound.registry import load_plugins, plugin_names
from polybound.runs import lock_file, locked
from polybound.training import Projected

ENGINES = ("loky", "dask", "ray")
"""joblib's backends that can carry out jobs; the last two are extras."""

_LOSSES = 5
"""How often the workers may die before the fault is taken to be the jobs'."""

_DEATHS = {"TerminatedWorkerError", "BrokenProcessPool", "KilledWorker", "RayError", "CommClosedError"}
"""The errors that say that a worker is gone."""


def jobs_of(
    experiment: Experiment, root: Path, digest: Callable[[str], str], data_dir: Path | None = None
) -> list[Job]:
    """All jobs of an experiment that are known yet; those that follow a search are known after it."""
    experiment = resolve(experiment, root, data_dir)
    # Only projections have bounds to be searched for.
    searched = experiment.kind == "search" and Projected.name in experiment.methods
    jobs: list[Job] = [search_job(experiment, data_dir)] if searched else []
    jobs += studies(experiment, data_dir)
    for specs in experiment.stacks(digest):
        if not specs[0].data.digest:
            continue  # that data set is not here
        plain = EvaluationSpec(experiment.attacks, "both", experiment.eps, experiment.limit or None)
        measured = [(plain, split) for split in experiment.splits]
        if specs[0].recipe.method.name == "none":
            measured += [(replace(plain, certify=(), defence=name), "test") for name in experiment.defences]
        jobs.append(StackJob(tuple(specs), tuple(measured), experiment.earlier_epochs()))
    return jobs


def _distinct(
    experiments: Sequence[Experiment], root: Path, digest: Callable[[str], str], data_dir: Path | None
) -> list[Job]:
    jobs = [job for experiment in experiments for job in jobs_of(experiment, root, digest, data_dir)]
    return list({job.key: job for job in jobs}.values())


def sweep(
    experiments: Sequence[Experiment],
    root: Path,
    *,
    data_dir: Path | None = None,
    engine: str = "loky",
    workers: int | None = None,
    cluster: str | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Run experiments; jobs that are done already, in this sweep or an earlier one, are not done again.

    Args:
        experiments: what to do; runs that several need are trained once.
        root: folder of the run folders, shared by all workers.
        data_dir: where the data lies.
        engine: "loky" (processes on this machine), "dask" or "ray".
        workers: how many jobs at once; by default one for each core, or all of a cluster. With 1, loky's jobs are done
            in this process.
        cluster: address of a Dask scheduler or a Ray head; without one, a cluster on this machine is started.
        on_progress: called now and then with the jobs done, all jobs and what is being done.
    """
    check_choice("engine", engine, ENGINES)
    root.mkdir(parents=True, exist_ok=True)
    root, data_dir = root.resolve(), None if data_dir is None else data_dir.resolve()
    losses, before, show = 0, None, on_progress or (lambda *_: None)
    problems: dict[str, str] = {}
    digest = digests(data_dir, fetch=True, problems=problems)
    # Over and over: a search must be done before the runs that it leads to are known, and workers may die.
    while True:
        jobs = _distinct(experiments, root, digest, data_dir)
        todo = [job for job in jobs if not job.done(root)]
        if not todo:
            break
        open_jobs = {job.key for job in todo}
        if open_jobs == before:
            raise PolyboundError(f"{len(todo)} jobs ended without their results, such as {todo[0].name}")
        errors: list[str | None] = []
        try:
            if engine == "loky" and (workers == 1 or len(todo) == 1):
                for job in todo:
                    show(sum(j.done(root) for j in jobs), len(jobs), job.name)
                    errors.append(_attempt(job, root, data_dir))
            else:
                do = partial(_attempt, root=root, data_dir=data_dir, plugins=plugin_names())
                with _watched(jobs, root, show):
                    if engine == "loky":
                        errors += in_workers(do, todo, workers or joblib.cpu_count())
                    else:
                        errors += _on_cluster(do, todo, engine, workers, cluster)
            before = open_jobs
        except (PolyboundError, OSError, KeyboardInterrupt):
            raise
        except Exception as error:
            # A worker died. What it was doing is not done, and is done again.
            losses += 1
            if losses == _LOSSES or not _DEATHS & {kind.__name__ for kind in type(error).__mro__}:
                raise
        if failed := [error for error in errors if error is not None]:
            rest = f" (and {len(failed) - 1} more of {len(todo)} jobs)" if len(failed) > 1 else ""
            raise PolyboundError(failed[0] + rest)
    if problems:
        # A data set that is not there has not kept the others from being used.
        raise PolyboundError("; ".join(problems.values()))


def _attempt(job: Job, root: Path, data_dir: Path | None, plugins: str | None = None) -> str | None:
    """Do a job; returns what is wrong with it, if it cannot be done.

    Another process knows no registered methods, attacks or data sets but those of `plugins`. A worker may be older than
    this sweep, or on another machine: its environment variable may say something else.
    """
    try:
        if plugins is not None:
            torch.set_num_threads(1)  # the jobs already share the cores
            load_plugins(plugins)
        if not job.done(root):
            with locked(lock_file(root, name) for name in job.locks):  # two workers never do the same at once
                if not job.done(root):
                    job.run(root, data_dir)
    except PolyboundError as error:
        return str(error)
    return None


def _on_cluster(
    do: Callable[[Job], str | None], todo: list[Job], engine: str, workers: int | None, cluster: str | None
) -> list[str | None]:
    """Do jobs on a cluster of Dask or Ray; one on this machine is started where none is given."""
    with ExitStack() as stack:
        if engine == "dask":
            dask = require("distributed", "dask", "this engine")
            where: Any = cluster
            if where is None:
                size = workers or joblib.cpu_count()
                where = dask.LocalCluster(n_workers=size, threads_per_worker=1, dashboard_address=None)
                stack.callback(where.close)
            stack.callback(dask.Client(where).close)
        else:
            ray = require("ray", "ray", "this engine")
            if not ray.is_initialized():
                given = {"address": cluster} if cluster else {"num_cpus": workers or joblib.cpu_count()}
                ray.init(**given, log_to_driver=False, include_dashboard=None if cluster else False)
                stack.callback(ray.shutdown)
            import_module("ray.util.joblib").register_ray()
        stack.enter_context(joblib.parallel_config(backend=engine, n_jobs=workers or -1))
        # One job at a time to each worker: they are long, and of very different lengths.
        parallel = joblib.Parallel(batch_size=1, pre_dispatch="all")
        found: list[str | None] = parallel(joblib.delayed(do)(job) for job in todo)
        return found


@contextmanager
def _watched(jobs: list[Job], root: Path, show: Callable[[int, int, str], None]) -> Iterator[None]:
    """Look at the files now and then, in a thread, to say how far all workers got."""
    stop = threading.Event()

    def look() -> None:
        left, last = list(jobs), False
        while True:
            left = [job for job in left if not job.done(root)]
            show(len(jobs) - len(left), len(jobs), left[0].name if left else "")
            if last:
                return
            last = stop.wait(2.0)  # then look once more

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def preview(experiments: Sequence[Experiment], root: Path, data_dir: Path | None = None) -> dict[str, Any]:
    """The numbers of "jobs", of different "runs", of jobs that are "done", and the data sets that are "missing" here.

    Nothing is trained, written or downloaded. A run that several experiments measure counts once.
    """
    known = digests(data_dir)
    jobs = _distinct(experiments, root, lambda name: known(name) or "unknown", data_dir)
    runs = {spec.address for job in jobs if isinstance(job, StackJob) for spec in job.specs}
    names = dict.fromkeys(name for experiment in experiments for name in experiment.datasets)
    absent = [name for name in names if missing(name, data_dir)]
    return {"jobs": len(jobs), "runs": len(runs), "done": sum(job.done(root) for job in jobs), "missing": absent}
