"""Transactions that are broken on purpose, by replacing one thing of the product."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from scanner.server.transactions import completion
from scanner.server.transactions.names import TransactionName
from scanner.server.transactions.registry import Transactions
from scanner.server.transactions.stage_writer import StageWriter
from scanner.server.transactions.verification import share_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

    from scanner.storage.interface import Mutation


def apply_all_attempts(patch: pytest.MonkeyPatch) -> None:
    """Every attempt of a part counts, whichever was decided."""
    patch.setattr(
        TransactionName,
        "chosen",
        lambda name, decision: [stage.key for stage in name.stages.of_version(decision.version)],
    )


def lose_a_stage(patch: pytest.MonkeyPatch) -> None:
    """The last stage of a version is left out."""
    chosen = TransactionName.chosen

    def all_but_one(*arguments: Any) -> list[Any]:
        return chosen(*arguments)[:-1]

    patch.setattr(TransactionName, "chosen", all_but_one)


def lose_deletes(patch: pytest.MonkeyPatch) -> None:
    """A bucket in which a version deletes, and puts nothing, is left as it is."""

    def pieces(*arguments: Any) -> Iterator[Sequence[Mutation]]:
        found = list(share_pieces(*arguments))
        if any(each.row for piece in found for each in piece):
            yield from found

    patch.setattr(completion, "share_pieces", pieces)


def decide_otherwise(patch: pytest.MonkeyPatch) -> None:
    """The answer names the attempts that were asked for, whatever was decided before."""
    publish = Transactions.publish

    async def answer(self: Any, key: Any, attempts: Any, **options: Any) -> Any:
        published = await publish(self, key, attempts, **options)
        return dataclasses.replace(published, attempts=dict(attempts))

    patch.setattr(Transactions, "publish", answer)


def stage_half(patch: pytest.MonkeyPatch) -> None:
    """Of what is staged in one go every second frame is acknowledged and not kept."""
    append = StageWriter.append

    async def half(self: Any, frames: Any) -> None:
        await append(self, frames[::2])

    patch.setattr(StageWriter, "append", half)
