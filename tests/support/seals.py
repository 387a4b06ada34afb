"""Messages that a test changes by hand: their seals would show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.wire.seals import SEAL_BYTES, require_unbroken_answer, sealed_like

if TYPE_CHECKING:
    from typing_extensions import Buffer


def unsealed(message: Buffer) -> bytes:
    """What a sealed message was without its seal."""
    assert len(sealed_like(message)(b"")) == SEAL_BYTES  # It has one,
    require_unbroken_answer(message)  # and it is whole.
    return bytes(message)[:-SEAL_BYTES]
