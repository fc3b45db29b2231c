"""Tables kept by key for the jobs that need them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

WAIT_S = 1.0  # for a table that is on its way, before it is asked for


class Tables:
    """For any number of threads: one adds tables as they come, others wait for those that they need.

    Args:
        fetch: gives the blocks of a table that does not come by itself.
    """

    def __init__(self, fetch: Callable[[int], Sequence[pa.Table]]) -> None:
        self._fetch = fetch
        self._tables: dict[int, pa.Table] = {}
        self._added = threading.Condition()

    def add(self, key: int, blocks: Sequence[pa.Table]) -> None:
        """Keep a table, its blocks joined without a copy."""
        table = blocks[0] if len(blocks) == 1 else pa.concat_tables(blocks)
        with self._added:
            self._tables[key] = table
            self._added.notify_all()

    def get(self, keys: Collection[int]) -> dict[int, pa.Table]:
        """The tables of some keys, each awaited for a while and then fetched."""
        found = {}
        for key in keys:
            with self._added:
                self._added.wait_for(lambda key=key: key in self._tables, WAIT_S)  # type: ignore[misc]
                table = self._tables.get(key)
            if table is None:
                self.add(key, self._fetch(key))
                with self._added:
                    table = self._tables[key]
            found[key] = table
        return found

    def drop(self, keys: Collection[int]) -> None:
        """Forget tables; keys that are not here are no error."""
        with self._added:
            for key in keys:
                self._tables.pop(key, None)

    def drop_below(self, key: int) -> None:
        """Forget every table whose key is smaller."""
        with self._added:
            self._tables = {each: table for each, table in self._tables.items() if each >= key}
