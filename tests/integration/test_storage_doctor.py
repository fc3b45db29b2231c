"""`ingest doctor`: failures of a store told apart, each with what to do; what is well is measured."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import faults
import pyarrow as pa
import pytest
import s3
import yaml
from typer.testing import CliRunner

from ingest import cli
from ingest.engine.nodes import on_every_node
from ingest.read.checks import examine
from ingest.spec import Spec

pytestmark = pytest.mark.integration

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures
CHECKS = ["client", "resolve", "clock", "list", "head", "read"]


@pytest.fixture
def proxy(bucket):
    bucket.put_table("d/a.parquet", pa.table({"x": range(1000)}))
    with faults.proxy(bucket.endpoint) as made:
        yield made


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def run(path, status, **sections):
        storage = sections.pop("storage", {})
        spec = tmp_path / "spec.yaml"
        spec.write_text(yaml.safe_dump({"source": {"path": path, "storage": {**storage, "retry_s": 0.5}}, **sections}))
        done = CliRunner().invoke(cli.app, ["doctor", str(spec), "--json", "-"])
        assert done.exit_code == status, done.output
        result = json.loads(done.stdout)
        assert result["ok"] is (status == 0)
        return result, done.stderr

    return run


def test_what_is_well_is_measured(doctor, bucket, proxy):
    proxy.delay_s = 0.03
    result, told = doctor(bucket.url("d"), 0, storage={"endpoint_url": proxy.endpoint})
    assert result["failures"] == []
    (driver,) = result["machines"]
    assert (driver["role"], driver["credentials"]) == ("driver", "environment")
    found = {check["check"]: check for check in driver["checks"]}
    assert list(found) == CHECKS
    assert found["list"]["files"] == 1
    assert 0.03 <= found["head"]["latency_s"] < 0.5
    assert 0 < found["read"]["bytes_per_s"] < found["read"]["bytes"] / 0.03
    assert abs(found["clock"]["skew_s"]) < 5
    assert told.count(": well") == len(CHECKS)


FAILURES = {
    "throttled": (faults.slow_down(), "list", "source.storage.concurrency"),
    "denied": (faults.denied(), "list", "bucket's policy"),
    "expired": (faults.expired(), "list", "Renew them"),
    "missing": (faults.answer(404, "NoSuchBucket"), "list", "source.path"),
    "clock": (faults.answer(403, "RequestTimeTooSkewed"), "list", "NTP"),
    "broken": (faults.reset_at_half, "list", "status page"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failures_are_told_apart(doctor, bucket, proxy, kind):
    fault, check, advice = FAILURES[kind]
    proxy.add(fault, matches=lambda request: request.target != "/")
    result, told = doctor(bucket.url("d"), 1, storage={"endpoint_url": proxy.endpoint})
    assert result["failures"] == [kind]
    failed = result["machines"][0]["checks"][-1]
    assert (failed["check"], failed["ok"], failed["kind"]) == (check, False, kind)
    assert advice in failed["do"]
    assert kind in told
    assert advice in told


def test_a_failure_of_reading_alone_is_seen(doctor, bucket, proxy):
    proxy.add(faults.denied(), kinds=("GET",))
    result, _ = doctor(bucket.url("d/a.parquet"), 1, storage={"endpoint_url": proxy.endpoint})
    checks = result["machines"][0]["checks"]
    assert [check["check"] for check in checks] == CHECKS
    assert [check["ok"] for check in checks] == [True] * 5 + [False]
    assert result["failures"] == ["denied"]


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
def test_unreachable(doctor, bucket, endpoint):
    result, told = doctor(bucket.url("d"), 1, storage={"endpoint_url": endpoint})
    assert result["failures"] == ["unreachable"]
    assert "endpoint_url" in told


def test_missing_data(doctor, bucket, proxy, tmp_path):
    for path, storage in ((bucket.url("none"), {"endpoint_url": proxy.endpoint}), (str(tmp_path / "none"), {})):
        assert doctor(path, 1, storage=storage)[0]["failures"] == ["missing"]


def test_a_clock_that_is_off(doctor, bucket, proxy):
    async def yesterday(proxy, request):
        found = await proxy.forward(request)
        return faults.Answer(found.status, {**found.headers, "date": formatdate(time.time() - 3600)}, found.body)

    proxy.add(yesterday, matches=lambda request: request.target == "/")
    result, told = doctor(bucket.url("d"), 1, storage={"endpoint_url": proxy.endpoint})
    assert result["failures"] == ["clock"]
    assert "by 3600 s" in told or "by 3599 s" in told


def test_local_files_and_a_cache(doctor, tmp_path):
    (tmp_path / "a.parquet").write_bytes(s3_table())
    cache = {"path": str(tmp_path / "cache"), "bytes": "1GiB"}
    result, _ = doctor(str(tmp_path / "a.parquet"), 0, cache=cache)
    assert [check["check"] for check in result["machines"][0]["checks"]] == ["client", "list", "head", "read", "cache"]
    (tmp_path / "file").write_text("")
    result, told = doctor(str(tmp_path / "a.parquet"), 1, cache={**cache, "path": str(tmp_path / "file" / "c")})
    assert "cache.path" in told


def s3_table():
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    return sink.getvalue().to_pybytes()


def test_a_wrong_spec_is_a_wrong_call(tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text("source: {path: s3://b/x, storage: {end_point: x}}")
    done = CliRunner().invoke(cli.app, ["doctor", str(spec)])
    assert done.exit_code == 2
    assert "endpoint_url" in done.stderr


@pytest.mark.usefixtures("cluster")
def test_every_node_is_asked(bucket, proxy):
    spec = Spec(source={"path": bucket.url("d"), "storage": {"endpoint_url": proxy.endpoint, "anonymous": True}})
    bucket.publish("d/a.parquet")
    (found,) = on_every_node(examine, spec)
    assert found["credentials"] == "none (anonymous)"
    assert [check["check"] for check in found["checks"]][:3] == CHECKS[:3]
