"""One rank's side of the board: it enters, learns when another rank fails, and tells when it fails itself."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray

from ingest.engine import gcs
from ingest.engine.board import died, owner_died
from ingest.errors import IngestError, StateError

log = logging.getLogger(__name__)

ANSWER_S = 30.0  # for the board, which has little to do; a run goes on without one
AGAIN_S = 0.1  # until a board that died is looked for again


class Bulletin:
    """For the trainer's thread and the prefetching one.

    Args:
        catalog: the actor that hosts the board.
        reopen: gives another one in the place of one that died.
        stream: what the ranks of an attempt have in common.
        rank, world_size: who this is.
        opener: names this process.
    """

    def __init__(
        self, catalog: Any, reopen: Callable[[], Any], stream: str, rank: int, world_size: int, opener: str
    ) -> None:
        self._catalog, self._reopen, self._stream = catalog, reopen, stream
        self._dead: str | None = None  # the actor that hosted the board before
        self._rank, self._world_size, self._opener = rank, world_size, opener
        self._feeder: Any = None
        self._key: str | None = None
        self._owner: int | None = None
        self._nodes: dict[int, str] = {}  # of all ranks, once they have entered
        self._turns: dict[str, int] = {}
        self._news: Future[Any] | None = None
        self._failure: IngestError | None = None
        self._told = self._left = False

    @property
    def key(self) -> str:
        """The attempt's name, the same on all its ranks."""
        return self._key or ""

    def enter(self, feeder: Any) -> None:
        """Say that this rank is there, and which actor lives as long as it does."""
        self._feeder = feeder
        self._key = str(self._ask("enter", *self._myself()) or self._key or uuid.uuid4().hex)
        self._listen()

    def change_feeder(self, feeder: Any) -> None:
        """Another actor takes the place of the one that lived as long as this rank."""
        self._feeder = feeder
        if not self._left and self._key is not None and self._catalog is not None:
            self._catalog.board.remote("enter", *self._myself())

    def _myself(self) -> tuple[Any, ...]:
        node = ray.get_runtime_context().get_node_id()
        return (self._stream, self._rank, self._world_size, self._feeder, self._opener, node, self._key)

    def check(self) -> IngestError | None:
        """The failure of another rank, if there is one. Costs nothing while there is no news."""
        if self._boardless() and self._renew():
            self._listen()
        if self._news is None or not self._news.done():
            return self._failure
        news, self._news = self._news, None
        error = news.exception()
        if error is None:
            failure, self._owner, nodes = news.result()
            self._nodes = nodes or self._nodes
            self._failure = self._failure or failure
            self._told = self._told or failure is not None
            if failure is None and not self._left:
                self._listen()
        elif isinstance(error, ray.exceptions.ActorUnavailableError) and ray.is_initialized() and not self._left:
            self._listen()  # cut off, or dead of a cause that Ray will tell: another board would not know of it
        elif owner_died(error) and self._owner not in (None, self._rank):
            assert self._owner is not None
            self._failure, self._told = died(self._owner, str(error)), True
        elif (gone := self._gone()) is not None:  # the board went with it
            self._failure, self._told = died(gone, "its node has died"), True
        elif isinstance(error, ray.exceptions.RayError) and ray.is_initialized() and not self._left:
            self._lose()
        return self._failure

    def _boardless(self) -> bool:
        """Whether this rank still needs a board, and has none."""
        needed = self._key is not None and not self._left and self._failure is None
        return needed and self._catalog is None and ray.is_initialized()

    def _lose(self) -> None:
        """The board has died. Ray gives its actor back by its name for as long as this process holds a handle of it."""
        if self._catalog is not None:
            self._dead, self._catalog = gcs.actor_id(self._catalog), None

    def _renew(self, *, enters: bool = True) -> bool:
        """Look for another board, or make it, and enter it; nobody waits for it to start. False: not yet."""
        catalog = self._reopen()
        if gcs.actor_id(catalog) == self._dead:
            return False
        self._catalog = catalog
        if enters:
            self._catalog.board.remote("enter", *self._myself())
        return True

    def _gone(self) -> int | None:
        """A rank whose node has died."""
        if not ray.is_initialized():
            return None
        return next((rank for rank, node in self._nodes.items() if rank != self._rank and gcs.node_died(node)), None)

    def fail(self, error: IngestError) -> None:
        """Tell the others of this rank's failure, once; what came from them is no news to them."""
        if self._told or self._key is None or not ray.is_initialized():
            return
        self._told = True
        with contextlib.suppress(ray.exceptions.RayError):  # the error itself is what the trainer must see
            self._ask("fail", self._key, error)

    def leave(self) -> None:
        """Need no other rank any more: this one's end will be no failure."""
        self._left = True
        if self._key is not None and self._catalog is not None:
            self._catalog.board.remote("leave", self._key, self._rank)

    def close(self) -> None:
        """Hear and tell nothing any more, and let the catalog go."""
        if ray.is_initialized():
            self.leave()
        self._catalog, self._feeder, self._key, self._news = None, None, None, None

    def compare(self, kind: str, facts: dict[str, Any]) -> None:
        """Hold what this rank starts from against what the others have said so far; the first to differ raises.

        Raises:
            StateError: they differ; both are shown.
        """
        turn = self._turns[kind] = self._turns.get(kind, -1) + 1
        error = self._ask("compare", self._key, kind, turn, self._rank, facts)
        if error is not None:
            self._told = True
            raise error if isinstance(error, StateError) else StateError(str(error))

    def bad(self, epoch: int, ids: list[int]) -> int:
        """Add bad samples of an epoch; the number of different ones so far, over all ranks."""
        found = self._ask("bad", self._stream, epoch, ids)
        return len(set(ids)) if found is None else int(found)

    def _listen(self) -> None:
        told = bool(self._nodes)
        self._news = self._catalog.board.remote("news", self._key, self._rank, self._owner, told=told).future()

    def _ask(self, method: str, *args: Any) -> Any:
        """Call the board, or another in the place of one that died; None where none answers, which ends no run."""
        until = time.monotonic() + ANSWER_S
        while True:
            try:
                if self._catalog is not None or self._renew(enters=method != "enter"):
                    return ray.get(self._catalog.board.remote(method, *args), timeout=ANSWER_S)
                why = "no other board yet"
            except ray.exceptions.ActorUnavailableError as error:
                why = type(error).__name__
            except ray.exceptions.RayActorError as error:
                why = type(error).__name__
                self._lose()
            except ray.exceptions.GetTimeoutError as error:
                why, until = type(error).__name__, 0.0
            if time.monotonic() > until:
                log.warning("rank %d: the other ranks cannot be asked (%s): %s", self._rank, method, why)
                return None
            time.sleep(AGAIN_S)
