"""Writes cycles, prints each number, and maintains the store, until test_kill_maintenance.py kills it."""

from __future__ import annotations

import itertools
import sys
import threading
from datetime import timedelta

from store.factory import open_metrics, urls_of
from store.tsdb.retention import Retention
from tests.store.aged_store import EVERY, START, cycle

KEEPS = Retention(raw=timedelta(hours=6))


def main() -> None:
    store = open_metrics(urls_of(sys.argv[1])[1])
    newest = [START]

    def maintain() -> None:
        while True:
            store.maintain(newest[0], KEEPS)

    threading.Thread(target=maintain, daemon=True).start()
    for number in itertools.count():
        at = START + number * EVERY
        store.write(at, cycle(at))
        newest[0] = at
        sys.stdout.write(f"{number + 1}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
