"""Random deaths on a cluster of several nodes: `python -m tests.chaos FOLDER --kills 30 --epochs 10`.

Two trainers take epoch after epoch while readers, augmentation actors, feeders, the catalog, trainers and whole nodes
with their object stores are killed at random moments. A trainer's death ends the attempt of all trainers, and the next
one goes on from the last place that all of them had reached. What the surviving history delivered is then held against
the plan: each id once an epoch, and every pixel that of a run without deaths.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import zlib

import numpy as np
import psutil
import ray
from ray.cluster_utils import Cluster

import ingest
from ingest.errors import IngestError

KINDS = ("reader", "AugmentHost", "FeederHost", "CatalogHost", "Trainer", "node")
WORLD, STORE = 2, 200 << 20


def values(folder: str, log: str | None) -> dict:
    return {
        "source": {"path": folder},
        "augment": {"ops": [{"random_resized_crop": {"size": 32}}, "flip"], "threads": 1},
        "order": {"lanes": 8, "interleave": 2},
        "batch": {"size": 16, "last": "keep"},
        "read": {"cpus": 0.5},
        "loader": {"prefetch_batches": 4, "log": log, "timeout_s": 120},
    }


class Recorder:
    """Keeps what trainers were given, in the driver's process tree but out of their own."""

    def __init__(self) -> None:
        self.batches: list[tuple] = []

    def add(self, *record) -> None:
        self.batches.append((*record, time.time()))

    def all(self) -> list[tuple]:
        return self.batches


class Trainer:
    def __init__(self, spec: dict, rank: int, epochs: int, recorder, attempt: int, state: dict | None, pace_s: float):
        self.args = spec, rank, epochs, recorder, attempt, state, pace_s

    def train(self) -> None:
        spec, rank, epochs, recorder, attempt, state, pace_s = self.args
        with ingest.Loader(spec, rank, WORLD, epochs=epochs, cache_dir=None) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _ in range(loader.epoch, epochs):
                for batch in loader:
                    rows = batch.valid_rows
                    digests = [zlib.crc32(np.ascontiguousarray(image)) for image in batch["image"][:rows]]
                    ids = np.asarray(batch["sample_id"][:rows]).tolist()
                    done = loader.state_dict()
                    # Known to the recorder before the next step: a death loses no record of a step that was saved.
                    ray.get(recorder.add.remote(attempt, rank, batch.epoch, done, ids, digests))
                    time.sleep(pace_s)


class Killer(threading.Thread):
    """Kills something of the next kind every few seconds."""

    def __init__(self, cluster, nodes, kills: int, seed: int, between_s: tuple[float, float]) -> None:
        super().__init__(daemon=True)
        self.cluster, self.nodes, self.kills, self.between_s = cluster, nodes, kills, between_s
        self.random, self.done, self.over = random.Random(seed), [], threading.Event()

    def run(self) -> None:
        order = [KINDS[i % len(KINDS)] for i in range(self.kills)]
        self.random.shuffle(order)
        for kind in order:
            while not self.over.wait(self.random.uniform(*self.between_s)):
                if self.kill(kind):
                    self.done.append((kind, time.time()))
                    break

    def kill(self, kind: str) -> bool:
        if kind == "node":
            place = self.random.randrange(len(self.nodes))
            self.cluster.remove_node(self.nodes[place], allow_graceful=False)
            self.nodes[place] = self.cluster.add_node(num_cpus=1, object_store_memory=STORE)
            return True
        name = "ray::read" if kind == "reader" else f"ray::{kind}"
        victims = [p for p in psutil.Process().children(recursive=True) if _title(p).lower().startswith(name.lower())]
        if victims:
            os.kill(self.random.choice(victims).pid, signal.SIGKILL)
        return bool(victims)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def run(spec: dict, epochs: int, pace_s: float, recorder) -> int:
    """Attempts until all epochs are through; returns how many there were."""
    attempt, state = 0, None
    while True:
        remote = ray.remote(Trainer).options(num_cpus=0, max_concurrency=2)
        trainers = [remote.remote(spec, rank, epochs, recorder, attempt, state, pace_s) for rank in range(WORLD)]
        ended = [trainer.train.remote() for trainer in trainers]
        try:
            ray.get(ended)
        except (ray.exceptions.RayError, IngestError) as error:
            told = []
            for ref in ended:  # every rank must end by itself, in bounded time
                try:
                    ray.get(ref, timeout=60)
                except (ray.exceptions.RayError, IngestError) as own:
                    told.append(f"{type(own).__name__}: {own}".strip().splitlines()[-1][:300])
            print("attempt", attempt, type(error).__name__, told, file=sys.stderr)
        else:
            return attempt + 1
        for trainer in trainers:
            ray.kill(trainer)
        state = reached(ray.get(recorder.all.remote()), attempt, state)
        attempt += 1
        if attempt > 60:
            raise RuntimeError("no progress")


def reached(batches: list[tuple], attempt: int, before: dict | None) -> dict | None:
    """The last state of an attempt that all ranks have reached."""
    states = []
    for rank in range(WORLD):
        own = [record[3] for record in batches if record[0] == attempt and record[1] == rank]
        if not own:
            return before
        states.append(own[-1])
    return min(states, key=lambda state: (state["epoch"], state["position"]))


def surviving(batches: list[tuple], starts: list[tuple[int, int]]) -> list[tuple]:
    """The records of the history that the last attempt descends from."""
    kept = []
    for attempt, own in enumerate(starts):
        later = min(starts[attempt + 1 :], default=None)
        for record in batches:
            place = (record[3]["epoch"], record[3]["position"])
            if record[0] == attempt and place > own and (later is None or place <= later):
                kept.append(record)
    return kept


def deliver(folder: str, epochs: int, kills: int, seed: int, log: str | None) -> dict:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": STORE})
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
    try:
        recorder = ray.remote(Recorder).options(num_cpus=0, scheduling_strategy=_here()).remote()
        killer = Killer(cluster, nodes, kills, seed, (2.0, 8.0))
        if kills:
            killer.start()
        attempts = run(values(folder, log), epochs, 0.2 if kills else 0.0, recorder)
        killer.over.set()
        batches = ray.get(recorder.all.remote())
        return {"attempts": attempts, "batches": batches, "kills": killer.done}
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
    asked = parser.parse_args()
    clean = deliver(asked.folder, asked.epochs, 0, 0, None)
    expected = {(record[2], i): d for record in clean["batches"] for i, d in zip(record[4], record[5], strict=True)}
    dirty = deliver(asked.folder, asked.epochs, asked.kills, asked.seed, asked.log)
    firsts: dict[int, tuple[int, int]] = {0: (0, 0)}
    for attempt in range(1, dirty["attempts"]):
        state = reached(dirty["batches"], attempt - 1, None)
        before = firsts[attempt - 1]
        firsts[attempt] = before if state is None else (state["epoch"], state["position"])
    history = surviving(dirty["batches"], [firsts[a] for a in range(dirty["attempts"])])
    seen = [((record[2], i), d) for record in history for i, d in zip(record[4], record[5], strict=True)]
    times = sorted(record[6] for record in dirty["batches"])
    gaps = [b - a for a, b in itertools.pairwise(times)]
    recovery = {}
    for kind, at in dirty["kills"]:
        after = [t for t in times if t > at + 0.5]
        recovery.setdefault(kind, []).append(round(max((after[0] if after else times[-1]) - at, 0.0), 1))
    result = {
        "attempts": dirty["attempts"],
        "kills": len(dirty["kills"]),
        "expected": len(expected),
        "delivered": len(seen),
        "repeated": len(seen) - len({key for key, _ in seen}),
        "missing": len(set(expected) - {key for key, _ in seen}),
        "changed": sum(expected.get(key) != digest for key, digest in seen),
        "longest_pause_s": round(max(gaps), 1),
        "recovery_s": recovery,
    }
    print(json.dumps(result))
    return 0 if not (result["missing"] or result["repeated"] or result["changed"]) else 1


if __name__ == "__main__":
    sys.exit(main())
