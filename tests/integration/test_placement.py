"""Where the parts of a run lie on a cluster of several nodes, what crosses between them, and what growing changes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.autoscaler.local
import yaml
from PIL import Image
from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID, FakeMultiNodeProvider
from ray_nodes import BIN, cluster_of, free_ports

from jobs import drain

pytestmark = pytest.mark.slow


@pytest.fixture
def folder():
    """A short one: a socket's path has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as name:
        yield Path(name)


def _spec(folder, data, **sections):
    file = folder / "spec.yaml"
    file.write_text(yaml.safe_dump({"source": {"path": str(data)}, **sections}), encoding="utf-8")
    return str(file)


def _python(nodes, code, timeout=160):
    env = nodes.env(RAY_ADDRESS=nodes.address)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_readers_stay_on_their_nodes_and_augmenters_beside_their_trainers_and_data_crosses_once(folder, pictures):
    rng = np.random.default_rng(0)
    for file in range(2):  # blocks of 100 KiB and more, since smaller ones travel with their task's answer
        images = [_picture(rng) for _ in range(120)]
        table = pa.table({"image": pa.array(images, pa.binary()), "label": np.arange(120)})
        (folder / "data").mkdir(exist_ok=True)
        pq.write_table(table, folder / "data" / f"{file}.parquet", row_group_size=20, compression="none")
    spec = _spec(
        folder,
        folder / "data",
        read={"labels": {"ingest-role": "reader"}},
        augment={"ops": [{"resize": {"size": 32}}]},
        batch={"size": 10},
        order={"lanes": 4},
    )
    with cluster_of(folder, token=False, cpus=0, RAY_metrics_report_interval_ms="1000") as nodes:
        nodes.add("--labels=ingest-role=reader", cpus=2)
        nodes.add("--labels=ingest-role=trainer", cpus=2)
        found = json.loads(
            _python(
                nodes,
                f"""
                import json, threading, time, urllib.request, ray
                from ingest.cli_common import load_spec
                from ingest.cli_run import Consumer
                ray.init(log_to_driver=False, logging_level="ERROR")
                while ray.cluster_resources().get("CPU", 0) < 4: time.sleep(0.2)
                time.sleep(5)  # until every raylet knows the others: one that it does not know is no neighbour
                where = {{n["NodeID"]: n["Labels"].get("ingest-role", "head") for n in ray.nodes()}}
                spec = load_spec({spec!r})
                options = dict(num_cpus=1, label_selector={{"ingest-role": "trainer"}}, max_concurrency=3)
                trainers = [ray.remote(Consumer).options(**options).remote(r, spec, 2, 3, None) for r in range(2)]
                done = [t.consume.remote(0.02, None) for t in trainers]
                from ray.util.state import list_actors, list_tasks
                seen = set()
                while True:
                    ready, _ = ray.wait(done, num_returns=2, timeout=0.3)
                    actors = {{(a.class_name, where[a.node_id]) for a in list_actors() if a.state == "ALIVE"}}
                    seen |= {{pair for pair in actors if pair[0] in ("AugmentHost", "FeederHost", "Consumer")}}
                    if len(ready) == 2: break
                ranks = ray.get(done)
                tasks = {{where[t.node_id] for t in list_tasks(limit=10000, detail=True)
                         if t.name.startswith(("ReadCalls", "ingest-read", "Read", "warm_reader")) and t.node_id}}
                del trainers
                time.sleep(6)
                bytes_in, lines = 0, []
                for n in ray.nodes():
                    address = "http://%s:%d/metrics" % (n["NodeManagerAddress"], n["MetricsExportPort"])
                    for line in urllib.request.urlopen(address).read().decode().splitlines():
                        if line.startswith("ray_object_manager_bytes"):
                            lines.append(line)
                            if "Received" in line: bytes_in += float(line.split()[-1])
                print("\\n".join(lines))
                reports = [r["report"] for r in ranks]
                total = {{name: sum(r[name] for r in reports) for name in ("fetched_bytes", "away_bytes")}}
                print(json.dumps([sorted(seen), sorted(tasks), [r["samples"] for r in ranks], total, bytes_in]))
                """,
            ).splitlines()[-1]
        )
    actors, tasks, samples, total, bytes_in = found
    assert dict(actors) == dict.fromkeys(("AugmentHost", "Consumer", "FeederHost"), "trainer")
    assert len(actors) == 3
    assert tasks == ["reader"]
    assert sum(samples) == 3 * 240
    # Encoded, once: what the feeders count, and what the raylets say that they received.
    shares = [crossed / total["fetched_bytes"] for crossed in (total["away_bytes"], bytes_in)]
    print("between nodes, of the encoded bytes: {:.3f} as feeders count, {:.3f} as raylets do".format(*shares))
    assert 0 < total["away_bytes"] <= 1.1 * total["fetched_bytes"]
    assert 0 < bytes_in <= 1.1 * total["fetched_bytes"]


def _picture(rng):
    out = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(out, "JPEG", quality=95)
    return out.getvalue()


def test_a_label_that_no_node_has_is_refused_before_anything_waits(folder, numbers):
    with cluster_of(folder, token=False) as nodes:
        spec = _spec(folder, numbers, read={"labels": {"ingest-role": "raeder"}})
        began = time.monotonic()
        env = nodes.env(RAY_ADDRESS=nodes.address)
        done = nodes.ingest("run", spec, "--world-size", "1", "--epochs", "1", env=env)
        assert done.returncode == 1
        assert "readers want a node with label ingest-role=raeder, and there is none" in done.stderr
        assert time.monotonic() - began < 60


class Epochs:
    """A trainer on reader nodes, in a process of its own, that takes each next batch when it is let.

    Args:
        nodes: a running cluster.
        spec: the file of the run's.
        epochs: how many.
    """

    def __init__(self, nodes, spec, epochs):
        code = f"""
            import hashlib, sys, ray, ingest, numpy as np
            ray.init(log_to_driver=False, logging_level="ERROR")
            digest = hashlib.sha256()
            with ingest.Loader({spec!r}, 0, 1, epochs={epochs}, cache_dir=None) as loader:
                for _ in range({epochs}):
                    for batch in loader:
                        digest.update(np.array(batch["sample_id"]).tobytes() + np.array(batch["image"]).tobytes())
                        print("step", loader.step, flush=True)
                        sys.stdin.readline()
            print("digest", digest.hexdigest())
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        env = nodes.env(RAY_ADDRESS=nodes.address)
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, at=None):
        """The digest of all that came, having called what is `at` each number of steps."""
        steps = 0
        with self._process as process:
            for line in process.stdout:
                if line.startswith("digest"):
                    return line
                steps += 1
                (at or {}).get(steps, lambda: None)()
                process.stdin.write("\n")
                process.stdin.flush()
        raise AssertionError(f"it ended after {steps} steps with {process.returncode}")


def _small_reads(folder, pictures):
    """A spec whose reads go on to its end: next to nothing is read ahead."""
    return _spec(
        folder,
        pictures,
        augment={"ops": [{"random_resized_crop": {"size": 32}}]},
        batch={"size": 4},
        order={"lanes": 4, "interleave": 2, "window_bytes": 20000},
        loader={"prefetch_batches": 2},
        read={"labels": {"ingest-role": "reader"}},
    )


def test_a_reader_node_that_comes_and_goes_in_mid_epoch_changes_speed_alone(folder, pictures):
    spec = _small_reads(folder, pictures)
    with cluster_of(folder, token=False, cpus=0) as nodes:
        nodes.add("--labels=ingest-role=reader", cpus=1)
        _until_cpus(nodes, 1)
        still = Epochs(nodes, spec, 2).run()
        more = []
        come = lambda: more.append(nodes.add("--labels=ingest-role=reader,kind=more", cpus=2))  # noqa: E731
        moved = Epochs(nodes, spec, 2).run({10: come, 70: lambda: nodes.end(more[0])})
        reads = _reads(nodes)
    assert moved == still
    assert {kind for kind, _ in reads} == {"other", "more"}


def test_readers_leave_a_node_that_is_taken_back_and_no_bit_changes(folder, pictures):
    spec = _small_reads(folder, pictures)
    with cluster_of(folder, token=False, cpus=0) as nodes:
        nodes.add("--labels=ingest-role=reader", cpus=1)
        spot = nodes.add("--labels=ingest-role=reader,kind=spot", cpus=1)
        _until_cpus(nodes, 2)
        spot_id = json.loads(_python(nodes, NODES).splitlines()[-1])["spot"]
        still = Epochs(nodes, spec, 3).run()
        began, left = time.time(), []

        def take_back():
            notice = [*drain.command(60), "--address", nodes.address, "--node-id", spot_id]
            subprocess.run([BIN / "ray", *notice[1:]], env=nodes.env(), timeout=90, check=True)
            left.append(time.time())

        moved = Epochs(nodes, spec, 3).run({20: take_back, 120: lambda: nodes.end(spot)})
        reads = _reads(nodes)
    assert moved == still
    before = [kind for kind, start in reads if began < start < left[0]]
    after = [kind for kind, start in reads if start > left[0] + 1]  # a worker that Ray has lent is given back by then
    assert "spot" in before
    assert after == ["other"] * len(after) != []


def _reads(nodes):
    """(kind of node, instant in seconds) of each read's start so far."""
    return json.loads(_python(nodes, READS).splitlines()[-1])


NODES = """
    import json, ray
    ray.init(log_to_driver=False, logging_level="ERROR")
    print(json.dumps({n["Labels"].get("kind", "other"): n["NodeID"] for n in ray.nodes()}))
"""
READS = """
    import json, ray
    from ray.util.state import list_tasks
    ray.init(log_to_driver=False, logging_level="ERROR")
    kinds = {n["NodeID"]: n["Labels"].get("kind", "other") for n in ray.nodes()}
    tasks = [t for t in list_tasks(limit=10000, detail=True) if t.name.startswith("Read") and t.node_id]
    print(json.dumps([(kinds[t.node_id], t.start_time_ms / 1000) for t in tasks if t.start_time_ms]))
"""


def _until_cpus(nodes, count):
    _python(
        nodes,
        f"""
        import ray, time
        ray.init(log_to_driver=False, logging_level="ERROR")
        while ray.cluster_resources().get("CPU", 0) < {count}: time.sleep(0.2)
        """,
    )


@pytest.mark.parametrize("generation", [1, 2])  # of Ray's autoscaler: `ray up` runs the first, KubeRay the second
def test_readers_that_wait_bring_a_node_and_give_the_same_results(folder, pictures, generation):
    """Ray Data's own allocator is off: waiting read tasks alone must be what Ray's autoscaler sees."""
    spec = _spec(folder, pictures, augment={"ops": [{"resize": {"size": 32}}]}, batch={"size": 10, "last": "keep"})
    target = folder / "out.json"
    verify = ["verify", spec, "--world-size", "1", "--no-cache", "--json", str(target)]
    # Started as Ray's own test cluster starts one, which would first stop every Ray of this machine.
    (port,) = free_ports(1)
    options, variables = _fake_cloud(folder, f"127.0.0.1:{port}", generation)
    with cluster_of(folder, token=False, cpus=0, options=options, port=port, **variables) as nodes:
        count = "import ray; ray.init(log_to_driver=False); print(ray.cluster_resources().get('CPU', 0))"
        assert float(_python(nodes, count).split()[-1]) == 0
        grown = nodes.ingest(*verify, env=nodes.env(RAY_ADDRESS=nodes.address))
        assert grown.returncode == 0, grown.stderr
        assert float(_python(nodes, count).split()[-1]) >= 2
    result = json.loads(target.read_text())
    assert (result["missing"], result["repeated"]) == (0, 0)
    with cluster_of(folder, token=False, cpus=2) as nodes:
        fixed = nodes.ingest(*verify, env=nodes.env(RAY_ADDRESS=nodes.address))
        assert fixed.returncode == 0, fixed.stderr
    fixed = json.loads(target.read_text())
    assert (fixed["order_digest"], fixed["content_digest"]) == (result["order_digest"], result["content_digest"])


def _fake_cloud(folder, address, generation):
    """(options, environment) of a head whose autoscaler starts raylets of two CPUs on this machine, two at most."""
    reader = {"resources": {"CPU": 2, "object_store_memory": 150_000_000}, "node_config": {}}
    defaults = yaml.safe_load(Path(ray.autoscaler.local.__file__).with_name("defaults.yaml").read_text())
    config = {
        **defaults,  # an external provider has none of its own, and Ray refuses a file without them
        "cluster_name": "fake",
        "max_workers": 2,
        "provider": {
            "type": "external",  # Ray's wheels lack the defaults of its own name for it
            "module": f"{FakeMultiNodeProvider.__module__}.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID,
            "gcs_address": address,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "cpu-reader": {**reader, "min_workers": 0, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",  # as the provider calls it
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 10,
    }
    file = folder / "autoscaling.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return (f"--autoscaling-config={file}",), {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": str(generation - 1),
        **({"RAY_NODE_TYPE_NAME": "ray.head.default"} if generation == 2 else {}),  # as KubeRay's operator sets it
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    }


def test_the_doctor_finds_the_node_that_cannot_import(folder, pictures):
    spec = _spec(folder, pictures, augment={"ops": [{"resize": {"size": 32}}]})
    with cluster_of(folder, token=False, cpus=1) as nodes:
        broken = folder / "broken"
        broken.mkdir()
        (broken / "obstore.py").write_text("raise ImportError('by hand')\n", encoding="utf-8")
        nodes.server_env = {**nodes.server_env, "PYTHONPATH": str(broken)}
        nodes.add(cpus=1)
        _until_cpus(nodes, 2)
        target = folder / "doctor.json"
        env = nodes.env(RAY_ADDRESS=nodes.address)
        done = nodes.ingest("doctor", spec, "--json", str(target), env=env)
        assert done.returncode == 1, done.stderr
        findings = json.loads(target.read_text())["cluster"]
    wrong = [f for f in findings if f["level"] == "error"]
    assert {f["check"] for f in wrong} <= {"import", "decode"}
    assert "cannot import obstore: ImportError: by hand" in [f["message"] for f in wrong]
    assert len({f["where"] for f in wrong}) == 1
    assert [f["message"] for f in findings if f["check"] == "fit"] == ["2 CPUs and 0 GPUs are enough to start"]
