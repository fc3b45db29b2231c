"""How many requests go at a time: additive increase, multiplicative decrease; and how often one is sent."""

from __future__ import annotations

import threading

import pytest

from ingest.storage import retry, traffic
from ingest.storage.failures import Kind, StoreError, failure, of_status, plain, xml_code
from ingest.storage.traffic import MOST, START, Limiter

pytestmark = pytest.mark.unit


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(traffic.time, "monotonic", lambda: now[0])
    return now


def busy(limiter, rounds=1):
    """As many requests at a time as may go, all answered, some rounds."""
    for _ in range(rounds):
        limiter._active = limiter.limit
        for _ in range(limiter._active):
            limiter.went_well(0.01)
        limiter._active = 0


def test_a_round_that_goes_well_adds_about_one(clock):
    limiter = Limiter()
    assert limiter.limit == START
    busy(limiter)
    assert limiter.limit in (START, START + 1)
    busy(limiter, 10)
    assert START + 6 <= limiter.limit <= START + 11
    busy(limiter, 1000)
    assert limiter.limit == MOST


def test_an_idle_limit_does_not_grow(clock):
    limiter = Limiter()
    for _ in range(1000):
        limiter.went_well(0.01)
    assert limiter.limit == START


def test_throttling_halves_once_for_all_requests_of_a_moment(clock):
    limiter = Limiter()
    for _ in range(START):
        limiter.throttled()
    assert limiter.limit == START // 2
    for expected in (4, 2, 1, 1):
        clock[0] += 1.5
        limiter.throttled()
        assert limiter.limit == expected


def test_a_store_that_turns_slow_counts_as_throttling(clock):
    limiter = Limiter()
    for _ in range(20):
        limiter.went_well(0.05)
    limiter.went_well(1.5)  # slow for one, and not yet for a store
    assert limiter.limit == START
    limiter.went_well(5.0)
    assert limiter.limit == START // 2


def test_no_more_than_the_limit_go_at_a_time():
    limiter = Limiter(3)
    gate, most, active = threading.Barrier(3), [], []

    def request():
        with limiter.turn():
            active.append(1)
            most.append(len(active))
            gate.wait(10)
            active.pop()

    threads = [threading.Thread(target=request) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 3


class Store:
    def __init__(self, retry_s=30.0, answered=True):
        self.limiter, self.retry_s, self.answered, self.renewed = Limiter(), retry_s, answered, 0

    def renew(self, error):
        self.renewed += 1
        return True


@pytest.fixture
def waits(monkeypatch):
    """Time passes by waiting alone."""
    now, waited = [0.0], []

    def wait(seconds):
        waited.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(retry._WAITING, "wait", wait)
    monkeypatch.setattr(retry.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: high)
    return waited


def failing(kind, times=10**6):
    left = [times]

    def call(attempt):
        left[0] -= 1
        if left[0] >= 0:
            raise failure(kind, "s3://b/x")
        return attempt

    return call


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        (Kind.DENIED, 2),
        (Kind.MISSING, 1),
        (Kind.CHANGED, 1),
        (Kind.CLOCK, 1),
        (Kind.REFUSED, 1),
        (Kind.EXPIRED, 2),
        (Kind.REGION, 2),
        (Kind.NO_CREDENTIALS, 2),
    ],
)
def test_how_often_a_refusal_is_asked_about(waits, kind, requests):
    store, asked = Store(), []

    def call(attempt):
        asked.append(attempt)
        raise failure(kind, "s3://b/x")

    with pytest.raises(StoreError) as caught:
        retry.persist(store, call)
    assert caught.value.kind is kind
    assert asked == list(range(requests))


@pytest.mark.parametrize("kind", [Kind.THROTTLED, Kind.UNREACHABLE, Kind.BROKEN])
def test_the_deadline_bounds_all_waits(waits, kind):
    with pytest.raises(StoreError, match=r"tried 11 times in 26\.3 s"):
        retry.persist(Store(), failing(kind))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]


def test_a_store_that_never_answered_is_given_up_sooner(waits):
    with pytest.raises(StoreError, match="cannot be reached"):
        retry.persist(Store(answered=False), failing(Kind.UNREACHABLE))
    assert sum(waits) <= 10
    store = Store(answered=False)
    assert retry.persist(store, failing(Kind.THROTTLED, 8)) == 8
    assert store.answered


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", Kind.THROTTLED),
        (503, "", Kind.THROTTLED),
        (429, "", Kind.THROTTLED),
        (500, "InternalError", Kind.BROKEN),
        (502, "", Kind.BROKEN),
        (403, "AccessDenied", Kind.DENIED),
        (401, "", Kind.DENIED),
        (403, "RequestTimeTooSkewed", Kind.CLOCK),
        (400, "ExpiredToken", Kind.EXPIRED),
        (404, "NoSuchKey", Kind.MISSING),
        (412, "", Kind.CHANGED),
        (301, "PermanentRedirect", Kind.REGION),
        (400, "AuthorizationHeaderMalformed", Kind.REGION),
        (400, "", Kind.REFUSED),
    ],
)
def test_answers_are_told_apart(status, code, kind):
    assert of_status(status, code) is kind
    assert failure(kind, "s3://b/x").hint or kind is Kind.REFUSED


def test_an_azure_signature_that_has_run_out_is_expired():
    text = "Signature not valid in the specified time frame: Start [...] - Expiry [...] - Current [...]"
    assert of_status(403, "AuthenticationFailed", text) is Kind.EXPIRED


def test_texts_lose_what_may_be_secret():
    text = "Error performing GET https://me:pw@a.blob.core.windows.net/c/x?sv=1&sig=abc%3D in\n 3ms"
    assert plain(text) == "Error performing GET https://a.blob.core.windows.net/c/x in 3ms"
    assert xml_code("<Error><Code>A</Code><Message>b\nc https://h/x?sig=d</Message></Error>") == (
        "A",
        "b c https://h/x",
    )
