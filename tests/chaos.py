"""Random deaths on a cluster of several nodes: `python -m tests.chaos FOLDER --kills 30 --epochs 10`.

Two trainers take epoch after epoch while readers, augmentation actors, feeders, the catalog, trainers and whole nodes
with their object stores are killed at random moments. A trainer's death ends the attempt of all trainers, and the next
one goes on from the last place that all of them had reached. What the surviving history delivered is then held against
the plan: each id once an epoch, and every pixel that of a run without deaths.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import psutil
import ray
from ray.cluster_utils import Cluster

import ingest
from ingest.errors import IngestError
from tests.histories import Kill, Record, reached, recoveries, surviving

KINDS = ("reader", "AugmentHost", "FeederHost", "CatalogHost", "Trainer", "node")
WORLD, STORE = 2, 200 << 20
PACE_S = 0.2  # of a step
WAIT_S = 2.0  # of a rank for one that is behind it
END_S = 60.0  # for every rank to end once one has failed
NOTICE_S = 60.0  # for Ray to call a node dead


def values(folder: str, log: str | None) -> dict:
    return {
        "source": {"path": folder},
        "augment": {"ops": [{"random_resized_crop": {"size": 32}}, "flip"], "threads": 1},
        "order": {"lanes": 8, "interleave": 2, "window_bytes": "64KiB"},  # so that there is always something to read
        "batch": {"size": 4, "last": "keep"},
        "read": {"cpus": 0.5},
        "loader": {"prefetch_batches": 4, "log": log, "timeout_s": 120},
    }


class Recorder:
    """Keeps what trainers were given, and says whether they go on, out of reach of the deaths."""

    def __init__(self, most_s: float) -> None:
        self.until = time.time() + most_s
        self.goes_on: dict[int, bool] = {}
        self.records: list[Record] = []
        self.steps: dict[int, list[int]] = {}  # of each attempt, by rank
        self.place = (0, 0)

    def add(self, attempt: int, rank: int, epoch: int, state: dict, ids: list[int], digests: list[int]) -> None:
        self.records.append(Record(attempt, rank, epoch, state, ids, digests, time.time()))
        steps = self.steps.setdefault(attempt, [0] * WORLD)
        steps[rank] += 1
        if self.lead(attempt, rank) == 0:
            self.place = max(self.place, self.records[-1].place)

    def lead(self, attempt: int, rank: int) -> int:
        """Steps that a rank has taken more than the last one."""
        return self.steps[attempt][rank] - min(self.steps[attempt])

    def begins(self, epoch: int) -> bool:
        """Whether an epoch begins, the same for all ranks: not when the time is up."""
        return self.goes_on.setdefault(epoch, time.time() < self.until)

    def reached(self) -> tuple[int, int]:
        """(epoch, position) that all ranks have reached."""
        return self.place

    def all(self) -> list[Record]:
        return self.records


class Trainer:
    def __init__(self, spec: dict, rank: int, epochs: int, recorder, attempt: int, state: dict | None, pace_s: float):
        self.args = spec, rank, epochs, recorder, attempt, state, pace_s

    def train(self) -> None:
        spec, rank, epochs, recorder, attempt, state, pace_s = self.args
        with ingest.Loader(spec, rank, WORLD, epochs=epochs, cache_dir=None) as loader:
            if state is not None:
                loader.load_state_dict(state)
            while loader.epoch < epochs and ray.get(recorder.begins.remote(loader.epoch)):
                for batch in loader:
                    rows = batch.valid_rows
                    digests = [zlib.crc32(np.ascontiguousarray(image)) for image in batch["image"][:rows]]
                    ids = np.asarray(batch["sample_id"][:rows]).tolist()
                    # Known to the recorder before the next step: a death loses no record of a step that was saved.
                    ray.get(recorder.add.remote(attempt, rank, batch.epoch, loader.state_dict(), ids, digests))
                    time.sleep(pace_s)
                    # Ranks stay together, loosely: one that waits for the others must not wait for a dead one.
                    until = time.time() + (WAIT_S if pace_s else 0)
                    while time.time() < until and ray.get(recorder.lead.remote(attempt, rank)) > 1:
                        time.sleep(0.05)


class Killer:
    """Kills something of the next kind at each of some places of the run, drawn at random, a moment after it."""

    def __init__(self, cluster, nodes, recorder, kills: int, rows: int, epochs: int, seed: int) -> None:
        self.cluster, self.nodes, self.recorder, self.done = cluster, nodes, recorder, []
        self.random = random.Random(seed)
        last = int(rows * epochs * 0.95)  # nothing is left to kill at the very end
        self.places = [divmod(place, rows) for place in sorted(self.random.randrange(last) for _ in range(kills))]
        self.kinds = [KINDS[i % len(KINDS)] for i in range(kills)]
        self.random.shuffle(self.kinds)

    def work(self, over: Callable[[float], bool]) -> None:
        """Kill until there is nothing left to do, or `over`, which waits for some seconds, says so."""
        for kind, place in zip(self.kinds, self.places, strict=True):
            while ray.get(self.recorder.reached.remote()) < place:
                if over(0.05):
                    return
            over(self.random.uniform(0, 2 * PACE_S))
            while not self.kill(kind):  # none of that kind is there now
                if over(0.2):
                    return

    def kill(self, kind: str) -> bool:
        place, at = ray.get(self.recorder.reached.remote()), time.time()
        if kind == "node":
            index = self.random.randrange(len(self.nodes))
            name = self.nodes[index].node_id
            self.cluster.remove_node(self.nodes[index], allow_graceful=False)
            self.nodes[index] = self.cluster.add_node(num_cpus=1, object_store_memory=STORE)
            while any(node["NodeID"] == name and node["Alive"] for node in ray.nodes()):
                if time.time() - at > NOTICE_S:
                    raise TimeoutError(f"Ray has not noticed the death of node {name} in {NOTICE_S:g} s")
                time.sleep(0.05)
        else:
            victims = _titled(f"ray::{kind}") if kind != "reader" else _titled("ray::read") or _titled("ray::IDLE")
            if not victims:
                return False
            at = time.time()
            os.kill(self.random.choice(victims).pid, signal.SIGKILL)
        self.done.append(Kill(kind, at, place, time.time() - at if kind == "node" else 0.0))
        print("kill", self.done[-1], file=sys.stderr, flush=True)
        return True


def _titled(name: str) -> list[psutil.Process]:
    """This process's descendants whose title begins so."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(child.cmdline()).lower().startswith(name.lower()):
                found.append(child)
    return found


def run(spec: dict, epochs: int, pace_s: float, recorder) -> list[tuple[int, int]]:
    """Attempts until all epochs are through; where each of them began."""
    state: dict | None = None
    starts: list[tuple[int, int]] = []
    while len(starts) < 100:
        attempt = len(starts)
        starts.append((0, 0) if state is None else (state["epoch"], state["position"]))
        remote = ray.remote(Trainer).options(num_cpus=0, max_concurrency=2)
        trainers = [remote.remote(spec, rank, epochs, recorder, attempt, state, pace_s) for rank in range(WORLD)]
        errors = ended([trainer.train.remote() for trainer in trainers])
        if not any(errors):
            return starts
        print("attempt", attempt, "ended:", *errors, sep="\n  ", file=sys.stderr, flush=True)
        for trainer in trainers:
            ray.kill(trainer)
        state = reached(ray.get(recorder.all.remote()), attempt, WORLD, state)
    raise RuntimeError("a hundred attempts, and no end")


def ended(refs: list) -> list[str]:
    """The error of each rank, empty where there was none; once one has failed all must end by themselves, and soon.

    Raises:
        TimeoutError: a rank did not end.
    """
    errors, failed_at, waiting = {}, 0.0, list(refs)
    while waiting:
        ready, waiting = ray.wait(waiting, timeout=END_S if failed_at else None)
        if not ready:
            raise TimeoutError(f"{len(waiting)} of {len(refs)} ranks hang since another failed: {errors}")
        try:
            ray.get(ready[0])
        except (ray.exceptions.RayError, IngestError) as error:
            failed_at = failed_at or time.time()
            last = str(error).strip().splitlines()[-1][:300]
            errors[ready[0]] = f"{type(error).__name__} (+{time.time() - failed_at:.1f} s): {last}"
    return [errors.get(ref, "") for ref in refs]


def deliver(folder: str, epochs: int, kills: int, rows: int, seed: int, log: str | None, most_s: float) -> dict:
    began = time.time()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        recorder = ray.remote(Recorder).options(num_cpus=0, scheduling_strategy=_here()).remote(most_s)
        killer = Killer(cluster, nodes, recorder, kills, rows, epochs, seed)
        with ThreadPoolExecutor(1) as pool:  # the killer makes nodes, which must happen in the main thread
            training = pool.submit(run, values(folder, log), epochs, PACE_S if kills else 0.0, recorder)
            killer.work(lambda wait_s: bool(wait([training], wait_s).done))
            starts = training.result()
        records = ray.get(recorder.all.remote())
        return {"starts": starts, "records": records, "kills": killer.done, "seconds": time.time() - began}
    finally:
        ray.shutdown()
        cluster.shutdown()


def _here():
    node = ray.get_runtime_context().get_node_id()
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", default=None)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further epoch begins")
    asked = parser.parse_args()
    clean = deliver(asked.folder, asked.epochs, 0, 1, 0, None, math.inf)
    expected = {(r.epoch, i): d for r in clean["records"] for i, d in zip(r.ids, r.digests, strict=True)}
    rows = len(expected) // asked.epochs
    dirty = deliver(asked.folder, asked.epochs, asked.kills, rows, asked.seed, asked.log, asked.minutes * 60)
    done = max(record.epoch for record in dirty["records"]) + 1
    expected = {(epoch, i): digest for (epoch, i), digest in expected.items() if epoch < done}
    history = surviving(dirty["records"], dirty["starts"])
    seen = [((r.epoch, i), d) for r in history for i, d in zip(r.ids, r.digests, strict=True)]
    told = recoveries(dirty["records"], dirty["kills"], WORLD)
    result = {
        "attempts": len(dirty["starts"]),
        "kills": len(dirty["kills"]),
        "epochs": done,
        "expected": len(expected),
        "delivered": len(seen),
        "repeated": len(seen) - len({key for key, _ in seen}),
        "missing": len(set(expected) - {key for key, _ in seen}),
        "changed": sum(expected.get(key) != digest for key, digest in seen),
        "clean_s": round(clean["seconds"], 1),
        "seconds": round(dirty["seconds"], 1),
        "recoveries": told,
        "longest_pause_s": {
            kind: max(each["pause_s"] for each in told if each["kind"] == kind)
            for kind in sorted({each["kind"] for each in told})
        },
    }
    print(json.dumps(result))
    return 0 if not (result["missing"] or result["repeated"] or result["changed"]) else 1


if __name__ == "__main__":
    sys.exit(main())
