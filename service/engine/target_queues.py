"""Performs actions in threads: several targets at once, the actions on one target in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from types import TracebackType
from typing import Self

from outrider.model import Action, EntityRef


class TargetQueues:
    """One queue per target, so that a slow action delays only later ones on the same target.

    Leaving the context waits for every action, and raises the first error of a thread.
    """

    def __init__(self, perform: Callable[[Action], None], workers: int) -> None:
        """``perform`` is called in ``workers`` threads. After its error the rest of that queue is dropped."""
        self._perform = perform
        self._workers = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="action")
        self._queues: dict[EntityRef, deque[Action]] = {}
        self._ended: set[str] = set()  # since the last claim began
        self._changed = Condition()
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=True)
        if self._error is not None and error is None:
            raise self._error

    @property
    def unfinished(self) -> int:
        """Number of actions that are queued or being performed."""
        with self._changed:
            return sum(len(queue) for queue in self._queues.values())

    @property
    def failed(self) -> bool:
        """True after an error of a thread."""
        return self._error is not None

    def submit(self, claim: Callable[[], Iterable[Action]]) -> int:
        """Queues the claimed actions that are not queued yet. Returns their number.

        An action whose lease has expired may be claimed again while it is queued, or just before it ends.
        """
        new = 0
        with self._changed:
            self._ended.clear()
        claimed = claim()
        with self._changed:
            for action in claimed:
                if action.id in self._ended:
                    continue
                queue = self._queues.get(action.target)
                if queue is None:
                    self._queues[action.target] = deque([action])
                    self._threads.submit(self._work_off, action.target)
                elif any(known.id == action.id for known in queue):
                    continue
                else:
                    queue.append(action)
                new += 1
        return new

    def wait(self, seconds: float) -> None:
        """Waits until an action has ended and a thread may be free, at most for this long."""
        before = self.unfinished

        def is_free() -> bool:
            left = sum(len(queue) for queue in self._queues.values())
            return self._error is not None or left == 0 or (left < before and left <= self._workers)

        with self._changed:
            self._changed.wait_for(is_free, seconds)

    def _work_off(self, target: EntityRef) -> None:
        """Performs the actions of one target. Each stays in its queue until it has ended."""
        while (action := self._first(target)) is not None:
            try:
                self._perform(action)
            except Exception as error:  # noqa: BLE001 raised in the thread that waits
                with self._changed:
                    self._error = self._error or error
                    del self._queues[target]
                    self._changed.notify_all()
                return
            with self._changed:
                self._ended.add(self._queues[target].popleft().id)
                self._changed.notify_all()

    def _first(self, target: EntityRef) -> Action | None:
        """The next action of a target. Its queue ends with the last one."""
        with self._changed:
            queue = self._queues[target]
            if queue:
                return queue[0]
            del self._queues[target]
            self._changed.notify_all()
            return None
