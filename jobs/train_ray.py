"""The train job on Ray Train: its workers are the ranks, its checkpoints carry the loader's state, restarts resume.

A model in torch has a `TorchTrainer`, any other a `DataParallelTrainer`; parameters are averaged by an actor in both.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.fs
import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from ingest.engine import cluster
from ingest.errors import IngestError, StageError
from ingest.spec import Storage
from ingest.storage.filesystem import split_url
from jobs.coverage import Coverage, line, result
from jobs.learner import Learner, Run, Task
from jobs.models import Parameters, average, load_torch
from jobs.saved import State, Store, pack, unpack

CHECKPOINT = "state"
Place = tuple[int, int, int]  # world size, epoch, position


class Ledger:
    """Where the ranks meet every few steps: hands everyone the mean of the parameters, and keeps what came. An actor.

    A run that starts again does the steps since its checkpoint once more, to the same bits: what a rank left here
    before it died is as good as what it brings now, and nothing is counted twice.
    """

    def __init__(self) -> None:
        self._came: dict[Place, dict[int, tuple[Parameters, dict[str, Any]]]] = {}
        self._means: dict[Place, Parameters] = {}
        self._reports: dict[int, dict[str, Any]] = {}
        self._changed = asyncio.Condition()

    async def meet(self, rank: int, place: Place, parameters: Parameters, part: dict[str, Any]) -> Parameters:
        """Bring a rank's parameters and part; returns the mean once all ranks have come."""
        async with self._changed:
            came = self._came.setdefault(place, {})
            came[rank] = (parameters, part)
            if len(came) == place[0] and place not in self._means:
                self._means = {place: average([came[r][0] for r in range(place[0])])}
                self._came[place] = {r: ([], part) for r, (_, part) in came.items()}
                self._changed.notify_all()
            await self._changed.wait_for(lambda: place in self._means)
            return self._means[place]

    async def report(self, rank: int, report: dict[str, Any]) -> None:
        """Keep the loader's last report."""
        self._reports[rank] = report

    async def history(self, upto: tuple[int, int]) -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]:
        """(parts of all ranks, in order; reports) before (epoch, position) `upto`."""
        full = sorted((place[1:], came) for place, came in self._came.items() if len(came) == place[0])
        parts = [[came[rank][1] for rank in sorted(came)] for place, came in full if place < upto]
        return parts, [self._reports[rank] for rank in sorted(self._reports)]


def work(config: dict[str, Any]) -> None:
    """A Ray Train worker: trains to the last epoch, from the checkpoint, else from the state file, else afresh."""
    task, store, ledger = config["task"], config["store"], config["ledger"]
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    learner = Learner(task)  # rank and world size are found from Ray Train
    try:
        learner.restore(*_found(store))
        while learner.loader.epoch < task.epochs:
            part = learner.train(config["save_every"])
            state = part["state"]
            place = (world_size, part["before"]["epoch"], part["before"]["position"])
            parameters = ray.get(ledger.meet.remote(rank, place, learner.parameters(), part))
            learner.restore(None, parameters)
            _report(rank, store, state, parameters)
        ray.get(ledger.report.remote(rank, learner.loader.report()))
    finally:
        learner.close()


def _found(store: Store) -> tuple[State | None, Parameters | None]:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return store.load()
    with checkpoint.as_directory() as folder:
        return unpack((Path(folder) / CHECKPOINT).read_bytes(), checkpoint.path)


def _report(rank: int, store: Store, state: State, parameters: Parameters) -> None:
    """A checkpoint of Ray Train, and the state file; rank 0 brings both, since all ranks have the same."""
    metrics = {"epoch": state["epoch"], "position": state["position"]}
    if rank:
        ray.train.report(metrics)
        return
    data = pack(state, parameters)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / CHECKPOINT).write_bytes(data)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))
    store.save(state, parameters)


def train(task: Task, run: Run, *, max_failures: int) -> dict[str, Any]:
    """Train up to the task's last epoch with Ray Train; the result is as of `jobs.train.train`.

    Args:
        task: of every rank.
        run: how.
        max_failures: restarts of the workers before giving up; each goes on from the last checkpoint.

    Raises:
        IngestError: of the rank that failed once too often.
        ClusterError: trainers, readers and augmenters can never all have a place.
    """
    cluster.check_job(task.spec, run.trainers, run.each)
    store, began = Store(run.state, task.spec), time.perf_counter()
    ledger = ray.remote(Ledger).options(num_cpus=0, max_concurrency=1000).remote()
    try:
        done = trainer(task, run, store, ledger, max_failures=max_failures).fit()
    except ray.train.TrainingFailedError as error:
        raise _cause(error) from error
    at = done.metrics or {}
    parts, reports = ray.get(ledger.history.remote((at.get("epoch", task.epochs), at.get("position", 0))))
    coverage = Coverage(task.spec, run.trainers)
    for ranks in parts:
        coverage.add(ranks)
    coverage.end()
    for epoch in coverage.epochs:
        epoch["seconds"] = (time.perf_counter() - began) / len(coverage.epochs)
        epoch["samples_per_s"] = (epoch["expected"] - epoch["missing"]) / epoch["seconds"]
        print(line(epoch), flush=True)
    return result(run.trainers, task.kind, coverage, reports, parts[-1][0]["state"] if parts else store.load()[0])


def trainer(task: Task, run: Run, store: Store, ledger: Any, *, max_failures: int) -> Any:
    """A Ray Train run of `work`, not begun yet."""
    return _kind(task)(
        work,
        train_loop_config={"task": task, "store": store, "ledger": ledger, "save_every": run.save_every},
        scaling_config=ray.train.ScalingConfig(
            num_workers=run.trainers,
            use_gpu=run.each.gpus > 0,
            resources_per_worker=run.each.resources,
            placement_strategy="SPREAD",
            label_selector=dict(run.each.labels) or None,
        ),
        run_config=ray.train.RunConfig(
            name=f"{os.environ.get('INGEST_RUN_ID', 'train')}-{time.strftime('%Y%m%d-%H%M%S')}",
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            **_storage(store),
        ),
    )


def _kind(task: Task) -> Any:
    if task.kind != "torch":
        return DataParallelTrainer
    load_torch()
    from ray.train.torch import TorchTrainer

    return TorchTrainer


def _storage(store: Store) -> dict[str, Any]:
    """Where Ray Train keeps its checkpoints: beside the state file; on this machine's disk where there is none."""
    if store.url is None:
        return {}
    scheme, rest = split_url(store.url)
    folder = rest.rpartition("/")[0] + "/ray-train"
    if scheme == "file":
        return {"storage_path": str(Path(folder).absolute())}
    if scheme in ("s3", "s3a") and store.storage != Storage():
        return {"storage_path": folder, "storage_filesystem": _s3(store.storage)}
    return {"storage_path": f"{scheme}://{folder}"}


def _s3(storage: Storage) -> pyarrow.fs.FileSystem:
    """Without keys of its own: each process finds its node's."""
    options: dict[str, Any] = {"endpoint_override": storage.endpoint_url, "anonymous": storage.anonymous}
    if storage.region or storage.endpoint_url:
        options["region"] = storage.region or "us-east-1"
    return pyarrow.fs.S3FileSystem(**options)


def _cause(error: Exception) -> IngestError:
    """The error of ours inside what Ray Train raises, with its rank."""
    failures = getattr(error, "worker_failures", None) or {}
    for rank, failure in sorted(failures.items()):
        cause = getattr(failure, "cause", None) or failure.__cause__ or failure
        if isinstance(cause, IngestError):
            cause.rank = rank if cause.rank is None else cause.rank
            return cause
    return StageError("training failed", stage="trainer", cause=str(error).strip().splitlines()[-1])
