"""A thread that writes beside a bench, for a block: what it raises is raised where somebody waits for it."""

import threading
from collections.abc import Callable

from bench.harness.errors import BenchFailed


class Background:
    """Runs a function in a thread of its own, which looks at `stopping` again and again.

    Args:
        run: What the thread does.
        stop_s: How long the end of the function may take once it was asked for, seconds.
    """

    def __init__(self, run: Callable[[], None], stop_s: float) -> None:
        self._run = run
        self._stop_s = stop_s
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_and_tell, name="writer", daemon=True)
        self.stopping = threading.Event()
        """Set when the function is to end."""
        self.changed = threading.Condition()
        """Notified by the function when there is something new, and once more when it fails."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, *, failed: bool) -> None:
        """Have the function end.

        Args:
            failed: Whether the block failed; then that is what is told.

        Raises:
            BenchFailed: The function failed, or did not end in time.
        """
        self.stopping.set()
        self._thread.join(self._stop_s)
        if not failed:
            self._raise_failure()
            if self._thread.is_alive():
                raise BenchFailed(f"the writer's last write was not acknowledged within {self._stop_s:.0f} s")

    def wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until a condition holds, which is looked at each time that something has changed; whether it does.

        Raises:
            BenchFailed: The function failed.
        """
        with self.changed:
            holds = self.changed.wait_for(lambda: condition() or self._failure is not None, timeout_s)
        self._raise_failure()
        return holds

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise BenchFailed(f"the writer failed: {self._failure}") from self._failure

    def _run_and_tell(self) -> None:
        try:
            self._run()
        except Exception as error:
            # Ends this thread and is raised again by whoever waits for it.
            with self.changed:
                self._failure = error
                self.changed.notify_all()
