"""Bad days of a store, through a proxy: what passes is asked again, what does not is named, no byte is wrong."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import time

import faults
import pyarrow as pa
import pytest
import s3

from ingest.errors import SourceError, SpecError
from ingest.manifest.listing import list_files
from ingest.spec import Source, Spec, Storage
from ingest.storage import counters, retry
from ingest.storage.failures import Kind, StoreError
from ingest.storage.filesystem import open_filesystem

pytestmark = pytest.mark.integration

bucket, s3_endpoint = s3.bucket, s3.s3_endpoint  # fixtures
DATA = bytes(range(256)) * 100
SECRET = "wJalrXUtnFEMI-a-secret"


@pytest.fixture
def proxy(s3_endpoint):
    with faults.proxy(s3_endpoint) as made:
        yield made


@pytest.fixture
def store(bucket, proxy):
    """(filesystem behind the proxy, URL of an object with DATA)."""
    bucket.put("d/x", DATA)
    return open_filesystem(bucket.url(), Storage(endpoint_url=proxy.endpoint, retry_s=3)), bucket.url("d/x")


def read(store, start=100, end=1100, etag=None):
    files, url = store
    return bytes(files.read_ranges(url, [(start, end)], etag)[0])


PASSING = {
    "503": faults.slow_down(),
    "429": faults.answer(429, "TooManyRequests"),
    "500": faults.answer(500, "InternalError"),
    "403": faults.denied(),
    "half": faults.reset_at_half,
    "reset": faults.reset_at_once,
    "short": faults.short,
    "range ignored": faults.ignore_range,
}


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_asked_for_again(store, proxy, name):  # S07, S08, S09
    proxy.add(PASSING[name], 1)
    assert read(store) == DATA[100:1100]
    assert proxy.count("GET") == 2


@pytest.mark.parametrize("name", sorted(set(PASSING) - {"range ignored"}))
@pytest.mark.parametrize("key", ["d/x", "d//x"])  # the second is listed by botocore: its name is not plain
def test_a_listing_that_fails_passingly_is_asked_for_again(bucket, store, proxy, name, key):  # S07 to S09
    bucket.put(key, DATA)
    files, _ = store
    before = sorted(info.url for info in files.walk(bucket.url()))
    proxy.clear()
    proxy.add(PASSING[name], 1)
    assert sorted(info.url for info in files.walk(bucket.url())) == before
    assert proxy.count("LIST") >= 2


def test_throttling_is_waited_out_with_growing_waits(store, proxy, monkeypatch):  # S07
    waits = []
    monkeypatch.setattr(retry._WAITING, "wait", waits.append)
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(store[0]._bucket, "retry_s", 100)
    before = counters()
    proxy.add(faults.slow_down(), 8)
    assert read(store) == DATA[100:1100]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    after = counters()
    assert after["throttled"] - before["throttled"] == after["retries"] - before["retries"] == 8
    assert after["get_requests"] - before["get_requests"] == proxy.count("GET") == 9
    assert after["get_bytes"] - before["get_bytes"] == 1000


def test_waits_are_jittered(monkeypatch, store, proxy):
    waits = []
    monkeypatch.setattr(retry._WAITING, "wait", waits.append)
    proxy.add(faults.slow_down(), 6)
    assert read(store) == DATA[100:1100]
    assert len(set(waits)) == 6
    assert all(0 <= wait <= 0.1 * 2**i for i, wait in enumerate(waits))


@pytest.mark.parametrize("kinds", ["GET", "HEAD", "LIST"])
def test_a_store_that_throttles_always_is_one_error_at_the_deadline(store, proxy, kinds):  # S07
    proxy.add(faults.slow_down(), kinds=(kinds,))
    files, url = store
    ask = {"GET": lambda: read(store), "HEAD": lambda: files.info(url), "LIST": lambda: files.walk(url)}[kinds]
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"throttling requests: 503.*tried \d+ times") as caught:
        ask()
    assert time.monotonic() - began < 4
    assert caught.value.kind is Kind.THROTTLED
    assert "concurrency" in caught.value.hint


@pytest.mark.parametrize("kind", ["GET", "HEAD", "LIST"])
def test_denied_is_asked_about_once_more_and_said_soon(store, proxy, kind):  # S08
    proxy.add(faults.denied())
    files, url = store
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"permission denied: 403 AccessDenied") as caught:
        {"GET": lambda: read(store), "HEAD": lambda: files.info(url), "LIST": lambda: files.walk(url)}[kind]()
    assert caught.value.kind is Kind.DENIED
    assert caught.value.path in (url, url.rpartition("/")[0])
    assert len(proxy.requests) == 2
    assert time.monotonic() - began < 1


def test_short_data_is_never_data(store, proxy):  # S09
    proxy.add(faults.short)
    with pytest.raises(StoreError, match="500 bytes came where 1000 were asked for, from byte 100"):
        read(store)
    assert proxy.count("GET") == 3
    proxy.clear()
    proxy.add(faults.reset_at_half)
    with pytest.raises(StoreError, match="did not answer as it should"):
        read(store)


def test_a_server_that_never_knows_ranges_is_read_all_the_same(store, proxy):
    proxy.add(faults.ignore_range)
    assert read(store) == DATA[100:1100]
    assert read(store, 0, 10) == DATA[:10]
    assert read(store, len(DATA) - 5, len(DATA)) == DATA[-5:]


def test_a_silent_store_is_asked_again(bucket, proxy):
    bucket.put("x", DATA)
    files = open_filesystem(bucket.url(), Storage(endpoint_url=proxy.endpoint, retry_s=2.9))
    proxy.add(faults.stall(1.5), 1)
    assert bytes(files.read_ranges(bucket.url("x"), [(0, 9)])[0]) == DATA[:9]
    assert len(proxy.requests) == 2


def test_a_changed_object_is_named(store, proxy, bucket):
    files, url = store
    etag = files.info(url).etag
    assert read(store, etag=etag) == DATA[100:1100]
    proxy.add(faults.first(lambda: bucket.put("d/x", DATA[::-1])), 1)
    with pytest.raises(StoreError, match="changed since it was listed") as caught:
        read(store, etag=etag)
    assert caught.value.kind is Kind.CHANGED
    assert caught.value.path == url


def test_a_change_is_seen_where_the_server_ignores_conditions(store, proxy, bucket):
    files, url = store
    etag = files.info(url).etag
    bucket.put("d/x", DATA[::-1])

    async def unconditional(proxy, request):
        return await proxy.forward(faults.Request(request.method, request.target, {**request.headers, "if-match": ""}))

    proxy.add(unconditional)
    with pytest.raises(StoreError, match="changed since it was listed"):
        read(store, etag=etag)


def test_a_page_of_a_listing_that_fails_is_asked_for_again(bucket, proxy):
    for i in range(2500):
        bucket.put(f"many/{i:05d}", b"x")
    files = open_filesystem(bucket.url(), Storage(endpoint_url=proxy.endpoint, retry_s=3))
    for fault in (None, faults.slow_down(), faults.reset_at_half, faults.denied()):
        proxy.clear()
        if fault is not None:
            proxy.add(fault, 1, matches=lambda request: "continuation-token" in request.target)
        before = counters()["list_requests"]
        names = [info.url for info in files.walk(bucket.url("many"))]
        assert names == [bucket.url(f"many/{i:05d}") for i in range(2500)]
        assert proxy.count("LIST") in ((3, 4) if fault is None else (4, 5))
        assert counters()["list_requests"] - before == proxy.count("LIST")


# -- credentials -------------------------------------------------------------------------------------------------------


def needs(token):
    """Refuse any other session token as expired."""

    def matches(request):
        return request.headers.get("x-amz-security-token") != token

    return matches


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Write the credentials of a profile, with a session token."""
    path = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))

    def write(token, name="default"):
        path.write_text(
            f"[{name}]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = {SECRET}\n"
            f"aws_session_token = {token}\n"
        )

    return write


def test_a_token_that_expires_is_renewed_where_it_is_read(bucket, proxy, profile):  # S11
    bucket.put("x", DATA)
    profile("old")
    files = open_filesystem(bucket.url(), Storage(endpoint_url=proxy.endpoint))
    assert files.credentials == "shared-credentials-file"
    assert len(files.read_ranges(bucket.url("x"), [(0, 9)])[0]) == 9
    profile("new")
    proxy.add(faults.expired(), matches=needs("new"))
    assert bytes(files.read_ranges(bucket.url("x"), [(0, 9)])[0]) == DATA[:9]
    assert [r.headers["x-amz-security-token"] for r in proxy.requests] == ["old", "old", "new"]


@pytest.mark.parametrize("kind", ["GET", "HEAD", "LIST"])
def test_credentials_that_cannot_be_renewed_are_said_to_have_expired(store, proxy, kind):  # S11
    proxy.add(faults.expired())
    files, url = store
    with pytest.raises(StoreError, match="credentials have expired") as caught:
        {"GET": lambda: read(store), "HEAD": lambda: files.info(url), "LIST": lambda: files.walk(url)}[kind]()
    assert caught.value.kind is Kind.EXPIRED
    assert len(proxy.requests) <= 3


def test_a_named_profile_is_used_and_a_missing_one_named(bucket, proxy, profile):
    bucket.put("x", DATA)
    profile("t", "team")
    storage = Storage(endpoint_url=proxy.endpoint, profile="team")
    assert open_filesystem(bucket.url(), storage).info(bucket.url("x")).size == len(DATA)
    assert "AKIDPROFILE" in proxy.requests[0].headers["authorization"]
    with pytest.raises(SourceError, match="nobody"):
        open_filesystem(bucket.url(), Storage(endpoint_url=proxy.endpoint, profile="nobody"))


def test_no_secret_gets_out(bucket, proxy, profile, caplog):
    caplog.set_level(logging.DEBUG)
    profile("TOKEN-" + SECRET)
    bucket.put("x", DATA)
    source = Source(path=bucket.url("x"), storage=Storage(endpoint_url=proxy.endpoint, retry_s=0.2))
    files = open_filesystem(bucket.url(), source.storage)
    assert files.info(bucket.url("x")).size == len(DATA)
    told = [repr(files), str(files), repr(source), source.model_dump_json()]
    for fault in (faults.denied(), faults.expired(), faults.slow_down(), faults.answer(403, "SignatureDoesNotMatch")):
        proxy.clear()
        proxy.add(fault)
        for ask in (lambda: files.info(bucket.url("x")), lambda: files.walk(bucket.url())):
            with pytest.raises(StoreError) as caught:
                ask()
            told += [str(caught.value), repr(caught.value.__cause__), str(caught.value.__cause__)]
            told.append(repr(pickle.loads(pickle.dumps(caught.value))))
    told += [repr(pickle.dumps(source)), caplog.text]
    assert not [text for text in told if SECRET in text or "AKIDPROFILE" in text]


@pytest.mark.parametrize(
    "storage",
    [
        {"headers": {"Authorization": "Bearer " + SECRET}},
        {"headers": {"x-amz-security-token": SECRET}},
        {"proxy_url": f"http://me:{SECRET}@proxy:3128"},
        {"endpoint_url": f"http://me:{SECRET}@host"},
    ],
)
def test_a_spec_refuses_secrets_without_repeating_them(storage):
    with pytest.raises(SpecError, match="credential") as caught:
        Spec(source={"path": "s3://b/x", "storage": storage})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url", [f"s3://AKIDKEY:{SECRET}@b/x", f"https://a.blob.core.windows.net/c/x?sv=1&sig={SECRET}"]
)
@pytest.mark.parametrize("key", ["source.path", "loader.log", "errors.quarantine"])
def test_a_url_that_opens_what_it_names_is_refused_without_repeating_it(key, url):
    section, name = key.split(".")
    values = {"source": {"path": "s3://b/x"}} | {section: {name: url}}
    with pytest.raises(SpecError, match="in its URL") as caught:
        Spec(**values)
    assert key in str(caught.value)
    assert SECRET not in str(caught.value)


# -- options -----------------------------------------------------------------------------------------------------------


def test_requester_pays_is_said_on_list_head_and_get(bucket, proxy):  # S13
    bucket.put_table("d/a.parquet", pa.table({"x": [1]}))
    proxy.add(faults.denied(), matches=lambda request: request.headers.get("x-amz-request-payer") != "requester")
    url = bucket.url("d")
    with pytest.raises(SourceError, match="denied"):
        list_files(Source(path=url, storage=Storage(endpoint_url=proxy.endpoint)))
    storage = Storage(endpoint_url=proxy.endpoint, requester_pays=True)
    proxy.requests.clear()
    (found,) = list_files(Source(path=url, storage=storage))
    assert len(open_filesystem(url, storage).read_ranges(found.url, [(0, 4)])[0]) == 4
    assert {request.kind for request in proxy.requests} == {"HEAD", "LIST", "GET"}


@pytest.mark.parametrize("code", [301, 400])
def test_a_bucket_in_another_region_is_found(bucket, proxy, code, monkeypatch):  # S12
    bucket.put("x", DATA)
    headers = {"x-amz-bucket-region": "eu-west-3"}
    word = "PermanentRedirect" if code == 301 else "AuthorizationHeaderMalformed"
    proxy.add(
        faults.answer(code, word, headers), matches=lambda r: "/eu-west-3/" not in r.headers.get("authorization", "")
    )
    files = open_filesystem(bucket.url(), Storage(endpoint_url=proxy.endpoint))
    assert bytes(files.read_ranges(bucket.url("x"), [(0, 9)])[0]) == DATA[:9]
    wrong = open_filesystem(bucket.url(), Storage(endpoint_url=proxy.endpoint, region="us-west-1"))
    with pytest.raises(StoreError, match="another region") as caught:
        wrong.read_ranges(bucket.url("x"), [(0, 9)])
    assert "source.storage.region" in caught.value.hint


def test_the_bucket_may_stand_in_the_host_name(s3_endpoint, proxy, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    plain = s3.Bucket("plainbucket", s3_endpoint)
    plain.put("a//b", DATA)
    plain.put("x", DATA)
    host = "http://plainbucket.s3.test"

    async def resolve(proxy, request):
        assert request.target.startswith(host)
        return await proxy.forward(
            faults.Request(
                request.method, "/plainbucket" + request.target[len(host) :], {**request.headers, "host": "127.0.0.1"}
            )
        )

    proxy.add(resolve)
    storage = Storage(endpoint_url="http://s3.test", proxy_url=proxy.endpoint, path_style=False)
    files = open_filesystem(plain.url(), storage)
    for key in ("x", "a//b"):
        assert bytes(files.read_ranges(plain.url(key), [(0, 9)])[0]) == DATA[:9]
        assert proxy.requests[-1].target == f"{host}/{key}"


def test_headers_and_a_proxy_are_used(bucket, proxy, s3_endpoint):
    bucket.put("x", DATA)
    storage = Storage(endpoint_url=s3_endpoint, proxy_url=proxy.endpoint, headers={"x-team": "vision"})

    async def absolute(proxy, request):  # a proxy is asked for whole URLs
        assert request.target.startswith(s3_endpoint)
        return await proxy.forward(faults.Request(request.method, request.target[len(s3_endpoint) :], request.headers))

    proxy.add(absolute)
    assert open_filesystem(bucket.url(), storage).info(bucket.url("x")).size == len(DATA)
    assert proxy.requests[0].headers["x-team"] == "vision"


def test_unreachable_and_certificates_are_named(bucket, tmp_path):
    dead = Storage(endpoint_url="http://127.0.0.1:9", retry_s=0.3)
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        open_filesystem(bucket.url(), dead).info(bucket.url("x"))
    assert caught.value.kind is Kind.UNREACHABLE
    with pytest.raises(SourceError, match="certificates cannot be read"):
        open_filesystem(bucket.url(), Storage(ca_file=str(tmp_path / "none.pem")))


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a//b", "//b", "a///b c/é", "/b", "a//b//c%3A"])
def test_keys_with_empty_parts_are_literal(bucket, key):
    bucket.put("a/b", b"another")
    bucket.put(key, DATA)
    files = open_filesystem(bucket.url(), bucket.storage)
    assert files.info(bucket.url(key)).size == len(DATA)
    assert bytes(files.read_ranges(bucket.url(key), [(5, 20)])[0]) == DATA[5:20]
    assert {info.url for info in files.walk(bucket.url())} == {bucket.url(key), bucket.url("a/b")}
    folder = key.rpartition("/")[0] + "/"
    if folder != "/":
        assert bucket.url(key) in {info.url for info in files.walk(bucket.url(folder))}


def test_keys_that_no_url_can_hold_are_refused_by_name(bucket):
    bucket.put("a/../b", DATA)
    files = open_filesystem(bucket.url(), bucket.storage)
    assert [info.url for info in files.walk(bucket.url("a"))] == [bucket.url("a/../b")]
    with pytest.raises(StoreError, match=r"has a part that is empty, '\.' or '\.\.'"):
        files.read_ranges(bucket.url("a/../b"), [(0, 1)])


FORK = """
import os, sys
from ingest.errors import SourceError
from ingest.spec import Storage
from ingest.storage.filesystem import open_filesystem
storage, url = Storage(endpoint_url=sys.argv[1]), sys.argv[2]
assert len(open_filesystem(url, storage).read_ranges(url, [(0, 5)])[0]) == 5
if os.fork() == 0:
    try:
        open_filesystem(url, storage).read_ranges(url, [(0, 5)])
    except SourceError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
assert len(open_filesystem(url, storage).read_ranges(url, [(0, 5)])[0]) == 5
"""


def test_a_fork_that_cannot_read_says_so_and_does_not_hang(bucket):  # D14
    bucket.put("x", DATA)
    command = [sys.executable, "-c", FORK, bucket.endpoint, bucket.url("x")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "forked" in done.stdout
    assert "spawn" in done.stdout
