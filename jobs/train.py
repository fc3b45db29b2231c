"""Job: train with two or more trainers. `python -m jobs.train SPEC --trainers 2 --epochs 2 [--state URL]`.

Each trainer has a loader and a copy of a small model; copies are averaged every few steps. Trainers are plain Ray
actors or, with `--runner ray-train`, the workers of a Ray Train run. What came is checked against what there is, epoch
by epoch. With `--state`, the job saves where it stands and goes on from there, on any number of trainers. A signal to
end (SIGTERM: `ray job stop`, a node that is taken back) is answered with a last save.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Self

import ray

from ingest.cli_common import FAULT, OK, cluster_session, guarded, humane, load_spec, write_json
from ingest.cli_trainers import Trainers
from ingest.engine import cluster
from ingest.spec.storage import no_credentials
from jobs.coverage import Coverage, line, result
from jobs.learner import Learner, Run, Task
from jobs.models import Parameters, average
from jobs.saved import Store

REPORTED = ("samples_per_s", "first_batch_s", "waiting_fraction", "peak_rss_bytes", "verdict")
TERMINATED = 128 + signal.SIGTERM


class Trainer:
    """One rank. Runs as a Ray actor.

    Args:
        rank, task, world_size: the learner's.
    """

    def __init__(self, rank: int, task: Task, world_size: int) -> None:
        self._rank, self._task, self._world_size = rank, task, world_size
        self._learner: Learner | None = None

    def open(self, state: dict[str, Any] | None, parameters: Parameters | None) -> dict[str, Any]:
        """Make the loader and turn it to a state; returns the state it stands at."""
        self._learner = Learner(self._task, self._rank, self._world_size)
        self._learner.restore(state, parameters)
        return self._learner.loader.state_dict()

    def train(self, parameters: Parameters | None, steps: int | None) -> dict[str, Any]:
        """See `Learner.train`; with the parameters and a report."""
        learner = self._opened()
        learner.restore(None, parameters)
        part = learner.train(steps)
        return {**part, "parameters": learner.parameters(), "report": learner.loader.report()}

    def close(self) -> None:
        """End the loader's actors and thread."""
        if self._learner is not None:
            self._learner.close()

    def _opened(self) -> Learner:
        if self._learner is None:
            raise RuntimeError("open comes first")
        return self._learner


class Ending:
    """Turns the first SIGTERM into a request to save and end; another one ends at once."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)

    def _ask(self, *_: object) -> None:
        print("asked to end: saving at the next step that all ranks share", flush=True)
        self.asked.set()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def train(task: Task, run: Run, *, steps: int | None = None) -> dict[str, Any]:
    """Train up to the task's last epoch with plain actors, from the saved state where there is one.

    Args:
        task: of every rank.
        run: how.
        steps: stop after so many, in mid-epoch, as an interruption would.

    Returns:
        What each epoch delivered and cost, a report of each rank, whether all came once, and whether it was asked to
        end early.

    Raises:
        IngestError: of the first rank that fails; the others are ended.
        ClusterError: trainers, readers and augmenters can never all have a place.
    """
    cluster.check_job(task.spec, run.trainers, run.each)
    store = Store(run.state, task.spec)
    found, parameters = store.load()
    coverage, reports = Coverage(task.spec, run.trainers), []
    with Ending() as ending, Trainers(Trainer, run.trainers, task, run.trainers, each=run.each) as group:
        now = group.call("open", found, parameters)[0]
        while now["epoch"] < task.epochs and steps != 0 and not ending.asked.is_set():
            ranks = group.call("train", ray.put(parameters), min(run.save_every, steps or run.save_every))
            parameters = average([rank["parameters"] for rank in ranks])
            now, reports = ranks[0]["state"], [rank["report"] for rank in ranks]
            store.save(now, parameters)
            steps = None if steps is None else steps - ranks[0]["steps"]
            if (epoch := coverage.add(ranks)) is not None:
                print(line(epoch), flush=True)
        if (epoch := coverage.end()) is not None:
            print(line(epoch), flush=True)
        group.call("close")
    return result(run.trainers, task.kind, coverage, reports, now, ended_early=ending.asked.is_set())


def parser() -> argparse.ArgumentParser:
    """The job's options."""
    found = argparse.ArgumentParser(prog="python -m jobs.train", description="Train with two or more trainers.")
    found.add_argument("spec", metavar="SPEC", help="the spec, a YAML file")
    found.add_argument("--trainers", type=int, default=2)
    found.add_argument("--epochs", type=int, default=2, help="in all, those of an earlier run included")
    found.add_argument("--runner", choices=["actors", "ray-train"], default="actors", help="plain actors, or Ray Train")
    found.add_argument("--state", metavar="URL", help="resume from this file where it exists; any fsspec URL")
    found.add_argument("--save-every", type=int, default=20, metavar="STEPS", help="average and save so often")
    found.add_argument("--steps", type=int, help="stop after so many steps, in mid-epoch")
    found.add_argument("--trainer-cpus", type=float, help="CPUs of each trainer; 0 as actors, 1 in Ray Train")
    found.add_argument("--trainer-gpus", type=float, default=0.0, help="GPUs of each trainer")
    found.add_argument(
        "--trainer-label",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the nodes for trainers. Repeatable",
    )
    found.add_argument("--max-failures", type=int, default=3, help="of Ray Train's workers, before it gives up")
    found.add_argument("--label", default="label", help="the output that holds labels")
    found.add_argument("--classes", type=int, default=1000)
    found.add_argument(
        "--model", choices=["auto", "numpy", "torch", "clicks"], default="auto", help="of images; or clicks"
    )
    found.add_argument("--step-ms", type=float, default=0.0, help="a step takes at least so long")
    found.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    found.add_argument("--json", metavar="FILE")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, train, show, write; returns the exit status."""
    options = parser()
    args = options.parse_args(argv)
    if min(args.trainers, args.epochs, args.classes, args.save_every) < 1 or (
        args.steps is not None and args.steps < 1
    ):
        options.error("--trainers, --epochs, --classes, --save-every and --steps must be at least 1")
    if args.runner == "ray-train" and args.steps is not None:
        options.error("--steps is of plain actors; Ray Train goes on to the last epoch")
    try:
        no_credentials(args.state)
    except ValueError as error:
        options.error(f"--state {error}")

    def work() -> int:
        spec = load_spec(args.spec, args.sets)
        task = Task.of(
            spec,
            kind=args.model,
            epochs=args.epochs,
            label=args.label,
            classes=args.classes,
            step_s=args.step_ms / 1000,
        )
        ray_train = args.runner == "ray-train"
        cpus = float(ray_train) if args.trainer_cpus is None else args.trainer_cpus
        each = cluster.PerTrainer(
            cpus, args.trainer_gpus, dict(pair.partition("=")[::2] for pair in args.trainer_label)
        )
        run = Run(args.trainers, args.state, args.save_every, each)
        if (
            ray_train
        ):  # heavy, and not everybody's. Before Ray starts: nodes that share a host unpack a job's files anew
            from jobs import train_ray as on_ray_train
        with cluster_session():
            if ray_train:
                done = on_ray_train.train(task, run, max_failures=args.max_failures)
            else:
                done = train(task, run, steps=args.steps)
        for rank in done["ranks"]:
            print(f"rank {rank['rank']}: " + ", ".join(f"{name} {humane(name, rank[name])}" for name in REPORTED))
        write_json(done, args.json)
        if not done["ok"]:
            return FAULT
        return TERMINATED if done["ended_early"] else OK

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main())
