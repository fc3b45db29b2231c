"""Asking again: exponential backoff with full jitter and a deadline; a refusal is asked about once more."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from ingest.storage.failures import AGAIN, Kind, StoreError
from ingest.storage.traffic import TRAFFIC, Limiter

BASE_S, CAP_S = 0.1, 5.0
UNKNOWN_S = 10.0  # a store that never answered this process may have a wrong name: it is given up sooner
_WAITING = threading.Event()  # never set: waiting on it can be told from the sleeping that tests forbid


class Asked(Protocol):
    """What a store offers to the retries."""

    limiter: Limiter
    retry_s: float
    answered: bool

    def renew(self, error: StoreError) -> bool:
        """Get credentials, or the region, anew after `error`; whether asking again makes sense."""


T = TypeVar("T")


def persist(store: Asked, call: Callable[[int], T]) -> T:
    """The result of `call(attempt)`, asked for until it comes or there is no hope.

    Throttling, the server's own errors, broken connections and short answers are asked again with waits of up to
    0.1 s, 0.2 s, 0.4 s and so on to 5 s, each drawn evenly (full jitter: Brooker, "Exponential Backoff And Jitter",
    2015), until the deadline. A denial is asked again once: stores give them by mistake. Expired credentials are
    renewed once.

    Raises:
        StoreError: of the last attempt, with how often and how long it was tried.
    """
    began = time.monotonic()
    renewed = False
    attempt = 0
    while True:
        try:
            with store.limiter.turn():
                result = call(attempt)
        except StoreError as error:
            attempt += 1
            if error.kind is Kind.THROTTLED:
                store.limiter.throttled()
                TRAFFIC.add(throttled=1)
            wait_s = random.uniform(0, min(CAP_S, BASE_S * 2 ** min(attempt - 1, 16)))  # noqa: S311  # no secret
            if error.kind in (Kind.EXPIRED, Kind.REGION, Kind.NO_CREDENTIALS):
                if renewed or not store.renew(error):
                    raise
                renewed, wait_s = True, 0.0
            elif error.kind not in AGAIN or attempt >= error.most_tries:
                raise
            deadline_s = store.retry_s
            if error.kind is Kind.UNREACHABLE and not store.answered:
                deadline_s = min(deadline_s, UNKNOWN_S)
            spent_s = time.monotonic() - began
            if spent_s + wait_s > deadline_s:
                error.message += f" (tried {attempt} times in {spent_s:.1f} s)"
                raise
            TRAFFIC.add(retries=1)
            _WAITING.wait(wait_s)
        else:
            store.answered = True
            return result
