"""All scan models side by side: `python -m bench continuation`.

Push, a live session, a continuation token over a pinned snapshot, a stateless cursor, and stateless pages as of one log
offset, on one transport, one codec and one storage. How fast is each; what does the server keep for it; what do a
cut, a dead server, a stalled consumer and a writer cost; and is what comes one state of the table?

Everything runs on one machine: server, client and writer share its processors. So figures of models are to be compared
with each other, taken in turn in one run, and not with those of another run.

All read the row store: images, which a server makes while it is asked, came in the middle of a run, for some models
sooner than for others, and push at 50 ms had 0.33 of its rate at 0 since 560 MB were through in 0.7 s. Images have a
bench of their own, `python -m bench peers --part far`.
"""

from __future__ import annotations

import math
import platform
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness.bars import Bar, at_least, machine, none_of, some_of, write_document
from bench.harness.progress import Advance, question_bars
from bench.questions.continuation import crossover, cuts, isolating, speed, stalled
from bench.questions.continuation.orders import create
from bench.questions.continuation.report import render
from bench.questions.continuation.scanning import MIB, MODELS, Median, Way
from bench.questions.continuation.serving import ServerProcess, Settings
from bench.questions.continuation.speed import ROUND_TRIP_S

if TYPE_CHECKING:
    from rich.console import Console

    from bench.questions.continuation.cuts import CutCost, Loss

STEADY_RATIO_MIN = 0.9
PUSH_RATIO_MIN = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much is measured."""

    tables: speed.Tables
    rounds: int
    judged_rounds: int
    cells: int | None
    """Of the speeds, only the first so many; None: all."""
    cut_every_bytes: tuple[float, ...]
    cut_rounds: int
    loss_rounds: int
    stall: stalled.Course
    crossover_rows: int
    crossover_page_bytes: int
    crossover_ratios: tuple[float, ...]
    crossover_rounds: int
    flights: int
    isolation_rounds: int
    broken: tuple[str, ...] = MODELS
    """Models whose servers are killed, and whose consumers stall."""
    judges_speed: bool
    """Whether it is enough to judge ratios of speeds."""


FULL = Scale(
    tables=speed.Tables(small=10_000, medium=200_000, large=1_000_000, huge=5_000_000),
    rounds=3,
    judged_rounds=5,
    cells=None,
    cut_every_bytes=(8e6, 32e6),
    cut_rounds=3,
    loss_rounds=2,
    stall=stalled.Course(rows=250_000, seconds=9.0, park_after_s=3.0, rows_per_s=8_000.0),
    crossover_rows=150_000,
    crossover_page_bytes=MIB // 2,
    crossover_ratios=(0.0, 0.001, 0.01, 0.1, 0.3, 1.0, 2.0),
    crossover_rounds=3,
    flights=100_000,
    isolation_rounds=1,
    judges_speed=True,
)
QUICK = Scale(
    tables=speed.Tables(small=1_000, medium=20_000, large=60_000, huge=90_000),
    rounds=1,
    judged_rounds=1,
    cells=34,
    cut_every_bytes=(5e6,),
    cut_rounds=1,
    loss_rounds=1,
    stall=stalled.Course(rows=20_000, seconds=0.8, park_after_s=0.4, rows_per_s=4_000.0),
    crossover_rows=10_000,
    crossover_page_bytes=MIB // 16,
    crossover_ratios=(0.0, 1.0),
    crossover_rounds=1,
    flights=100_000,
    isolation_rounds=1,
    judges_speed=False,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Everything."""

    speeds: list[speed.Speed]
    cuts: list[CutCost]
    losses: list[Loss]
    stalls: list[stalled.Stalled]
    crossover: crossover.Crossover
    isolation: list[isolating.Isolation]

    def rows_per_s(self, table: str, model: str, **way: object) -> float:
        """The speed of one cell; what `way` does not say is as it comes.

        Raises:
            KeyError: It was not measured.
        """
        asked = Way(model=model, **way)  # type: ignore[arg-type]
        cell = speed.Cell(table=table, way=asked)
        for each in self.speeds:
            if each.cell == cell:
                return each.median.rows_per_s
        raise KeyError(cell)


def measure(scale: Scale, advance: Advance) -> Measured:
    """Ask every question.

    Args:
        scale: How much.
        advance: Told of a question and its number of steps; what it returns is told of each step.
    """
    wanted = speed.cells()[: scale.cells]
    judged = sum(map(speed.is_judged, wanted))
    with tempfile.TemporaryDirectory(prefix="weir-continuation-") as folder:
        with ServerProcess(Path(folder, "data"), Settings(images="off")) as server:
            names = ("small", "medium", "large", "wide", "huge")
            loaded = advance("loading", len(names))
            for name in names:
                create(server, name, scale.tables.rows_of(name), buckets=4 if name == "wide" else 1)
                loaded()
            steps = scale.rounds * len(wanted) + (scale.judged_rounds - scale.rounds) * judged
            scanned = advance("speed", steps)
            speeds = speed.measure(server, scale.tables, wanted, scale.rounds, scale.judged_rounds, scanned)
            rows, every = scale.tables.large, scale.cut_every_bytes
            scanned = advance("cut lines", (1 + len(every)) * len(MODELS) * scale.cut_rounds)
            cut = cuts.measure_cuts(server, "large", rows, every, scale.cut_rounds, scanned)
            killed = advance("killed servers", scale.loss_rounds * len(scale.broken))
            losses = cuts.measure_losses(server, "large", rows, scale.broken, scale.loss_rounds, killed)
            judged_scans = advance("isolation", len(MODELS))
            isolation = isolating.measure(server, scale.flights, scale.isolation_rounds, judged_scans)
        stalls = stalled.measure(
            scale.stall, scale.broken, advance("stalled consumers", 1 + len(scale.broken))
        )
        with ServerProcess(Path(folder, "crossover"), Settings(linger_s=0.0, images="off")) as server:
            crossed = crossover.measure(
                server,
                scale.crossover_rows,
                scale.crossover_page_bytes,
                scale.crossover_ratios,
                scale.crossover_rounds,
                advance("crossover", len(scale.crossover_ratios)),
            )
    return Measured(
        speeds=speeds, cuts=cut, losses=losses, stalls=stalls, crossover=crossed, isolation=isolation
    )


def bars(measured: Measured, scale: Scale) -> list[Bar]:
    """What must hold."""
    violations = {each.model: each.violations for each in measured.isolation}
    found = [
        none_of(f"isolation violations, {model}", count)
        for model, count in violations.items()
        if model != "cursor"
    ]
    found.append(some_of("isolation violations, cursor", violations["cursor"]))
    scans: dict[str, Sequence[Median | CutCost | Loss | stalled.Stalled]] = {
        "beside a writer and without": [each.median for each in measured.speeds],
        "over cut lines": measured.cuts,
        "of killed servers": measured.losses,
        "of stalled consumers": measured.stalls,
    }
    for where, each_scan in scans.items():
        wrong = sum(each.lost + each.repeated for each in each_scan)
        found.append(none_of(f"rows lost or repeated {where}", wrong))
    again = sum(each.rows_again for each in measured.cuts if each.model == "push")
    again += sum(each.rows_again for each in measured.losses if each.model == "push")
    found.append(none_of("rows that a push consumer read again", again))
    (parked,) = (each for each in measured.stalls if each.model == "push")
    pinned = (parked.snapshots_at_end, parked.iterators_at_end)
    found.append(
        Bar("snapshots and iterators while a push scan is parked", pinned, "= (0, 0)", pinned == (0, 0))
    )
    return found + (_speed_bars(measured) if scale.judges_speed else [])


def _speed_bars(measured: Measured) -> list[Bar]:
    near = measured.rows_per_s("huge", "push")
    far = measured.rows_per_s("huge", "push", round_trip_s=ROUND_TRIP_S)
    session = measured.rows_per_s("huge", "session", round_trip_s=ROUND_TRIP_S)
    return [
        at_least("push at 50 ms over push at 0", far / near, STEADY_RATIO_MIN),
        at_least("push over session at 50 ms", far / session, PUSH_RATIO_MIN),
    ]


def document_of(measured: Measured, scale: Scale) -> dict[str, Any]:
    """What the JSON has."""
    plain = _plain(asdict(measured))
    return {
        "bars": [asdict(bar) for bar in bars(measured, scale)],
        "crossover_changes": {
            "a rebuilt page takes twice a pinned one": measured.crossover.first_above(2.0),
            "a rebuilt page takes ten times a pinned one": measured.crossover.first_above(10.0),
        },
        **plain,
        "scale": _plain(asdict(scale)),
        "machine": machine() | {"python": platform.python_version()},
    }


def _plain(value: Any) -> Any:
    """JSON has no infinity: what is endless is null."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if value == math.inf else value


def run(output: Path | None, plots: Path | None, console: Console, *, scale: Scale) -> list[Bar]:
    """Measure, write the JSON, print, and draw."""
    with question_bars(console) as advance:
        measured = measure(scale, advance)
    document = document_of(measured, scale)
    write_document(output, document)
    for table in render(document):
        console.print(table)
    if plots is not None:
        # Matplotlib takes a second to load: only for pictures.
        from bench.questions.continuation.plots import draw

        draw(document, plots)
    return bars(measured, scale)
