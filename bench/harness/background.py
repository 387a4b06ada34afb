"""A thread that writes beside a bench, for a block: what it raises is raised where somebody waits for it."""

import abc
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bench.harness.errors import BenchFailed


class Background(abc.ABC):
    """Runs `_run` in a thread of its own, which looks at `stopping` again and again.

    Args:
        stop_s: How long its end may take once it was asked for, seconds.
    """

    def __init__(self, stop_s: float) -> None:
        self._stop_s = stop_s
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_and_tell, name="writer", daemon=True)
        self.stopping = threading.Event()
        """Set when it is to end."""
        self.changed = threading.Condition()
        """Notified when there is something new, and once more when it fails."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Have it end; if the block failed, that is what is told.

        Raises:
            BenchFailed: It failed, or did not end in time.
        """
        self.stopping.set()
        self._thread.join(self._stop_s)
        if kind is None:
            self.check()
            if self._thread.is_alive():
                raise BenchFailed(f"the writer's last write was not acknowledged within {self._stop_s:.0f} s")

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a condition holds, which is looked at each time that something has changed; whether it does.

        Raises:
            BenchFailed: The writer failed.
        """
        with self.changed:
            holds = self.changed.wait_for(lambda: condition() or self._failure is not None, timeout_s)
        self.check()
        return holds

    def check(self) -> None:
        """See that it writes.

        Raises:
            BenchFailed: It failed.
        """
        if self._failure is not None:
            raise BenchFailed(f"the writer failed: {self._failure}") from self._failure

    @abc.abstractmethod
    def _run(self) -> None:
        """Write until `stopping` is set."""

    def _run_and_tell(self) -> None:
        try:
            self._run()
        except Exception as error:
            # Ends this thread and is raised again by whoever waits for it.
            with self.changed:
                self._failure = error
                self.changed.notify_all()
