"""A cancellation at a moment that is counted in steps of tasks, as the scheduler makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import trio

if TYPE_CHECKING:
    from types import TracebackType


class CancelAtStep(trio.abc.Instrument):
    """Cancels a block after so many steps of all tasks.

    Args:
        steps: That many, from the block's beginning on.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps
        self.scope = trio.CancelScope()

    def __enter__(self) -> Self:
        trio.lowlevel.add_instrument(self)
        self.scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        trio.lowlevel.remove_instrument(self)
        return self.scope.__exit__(kind, error, traceback)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """See trio."""
        self._left -= 1
        if self._left == 0:
            self.scope.cancel()
