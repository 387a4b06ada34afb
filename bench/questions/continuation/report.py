"""The comparison as tables, made from its JSON alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

Document = Mapping[str, Any]

DEFAULT_WAY: Mapping[str, Any] = {
    "page_bytes": 4 * 1024 * 1024,
    "page_depth": 1,
    "round_trip_s": 0.0,
    "cut_bytes": None,
    "credit_bytes": None,
    "ranges": 1,
}


def speed_of(document: Document, table: str, model: str, writer: float | None = 0.0, **way: Any) -> Any:
    """The median of one cell, as it stands in the JSON; None: it was not measured."""
    wanted = {"table": table, "way": {"model": model, **DEFAULT_WAY, **way}, "writer": writer}
    return next((each["median"] for each in document["speeds"] if each["cell"] == wanted), None)


def render(document: Document) -> Iterator[Table]:
    """Every table, in the order of the questions."""
    yield _speeds(document)
    yield _cuts(document)
    yield _losses(document)
    yield _stalls(document)
    yield _crossover(document)
    yield _isolation(document)


def _cuts(document: Document) -> Table:
    return _rows(
        "Cut lines",
        (
            "model",
            "cut every MB",
            "cuts",
            "s",
            "recovery ms",
            "MB again a cut",
            "begun again",
            "rows again",
            "wrong",
        ),
        (
            (
                each["model"],
                "-" if each["every_bytes"] is None else f"{each['every_bytes'] / 1e6:.0f}",
                f"{each['cuts']:.0f}",
                f"{each['seconds']:.2f}",
                f"{each['recovery_ms']:.0f}",
                f"{each['again_mb_per_cut']:.1f}",
                f"{each['restarts']}",
                f"{each['rows_again']}",
                f"{each['lost'] + each['repeated']}",
            )
            for each in document["cuts"]
        ),
    )


def _losses(document: Document) -> Table:
    return _rows(
        "Killed servers",
        ("model", "rows had", "rows again", "down s", "back s", "read from", "wrong"),
        (
            (
                each["model"],
                f"{each['had_rows']}",
                f"{each['rows_again']}",
                f"{each['down_s']:.2f}",
                f"{each['back_s']:.2f}",
                each["read_source"] or "begun again",
                f"{each['lost'] + each['repeated']}",
            )
            for each in document["losses"]
        ),
    )


def _stalls(document: Document) -> Table:
    return _rows(
        "Stalled consumers, at the end of the stall",
        ("model", "snapshots", "iterators", "kept MB", "rows written", "rest s", "wrong"),
        (
            (
                each["model"],
                f"{each['samples'][-1]['snapshots']}",
                f"{each['samples'][-1]['iterators']}",
                f"{each['kept_bytes'] / 1e6:.1f}",
                f"{each['written']}",
                f"{each['rest_s']:.2f}",
                f"{each['lost'] + each['repeated']}",
            )
            for each in document["stalls"]
        ),
    )


def _isolation(document: Document) -> Table:
    return _rows(
        "Isolation beside a writer",
        ("model", "scans", "rows", "not one state", "rows wrong", "kinds"),
        (
            (
                each["model"],
                f"{each['scans']}",
                f"{each['rows']}",
                f"{each['scans_violated']}",
                f"{each['violations']}",
                ", ".join(f"{count} {kind}" for kind, count in each["kinds"].items()),
            )
            for each in document["isolation"]
        ),
    )


def _speeds(document: Document) -> Table:
    def rows() -> Iterator[Sequence[str]]:
        for each in document["speeds"]:
            cell, way, median = each["cell"], each["cell"]["way"], each["median"]
            yield (
                way["model"],
                cell["table"],
                _means(way),
                f"{way['round_trip_s'] * 1000:.0f}",
                f"{median['written_per_s']:.0f}",
                f"{median['seconds']:.3f}",
                f"{median['rows_per_s'] / 1e6:.2f}",
                f"{median['mb_per_s']:.0f}",
                f"{median['first_row_ms']:.0f}",
                f"{median['requests']:.0f}",
                f"{median['seeks']:.0f}",
                f"{median['states']:.0f}",
            )

    heads = (
        "model", "table", "page or credit", "rtt ms", "writes/s", "s", "M rows/s", "MB/s", "first ms", "calls",
        "seeks", "states",
    )  # fmt: skip
    return _rows("Whole scans", heads, rows())


def _means(way: Mapping[str, Any]) -> str:
    """Pages in MiB and how many ahead, or the credit; and how many ranges at a time."""
    page = f"{way['page_bytes'] / 2**20:.3g} x{way['page_depth']}"
    credit = f"{way['credit_bytes'] / 2**20:g}" if way["credit_bytes"] else ""
    of_each = credit if way["model"] == "push" else page
    return of_each if way["ranges"] == 1 else f"{of_each} of {way['ranges']}".strip()


def _crossover(document: Document) -> Table:
    found = document["crossover"]
    heads = (
        "changes", "updated/rows", "pinned page ms", "rebuilt page ms", "pinned scan s", "rebuilt scan s",
        "first row ms", "scan of now s",
    )  # fmt: skip
    rows = (
        (
            f"{each['changes']}",
            f"{each['ratio']:.3f}",
            f"{each['pinned_page_ms']:.1f}",
            f"{each['rebuilt_page_ms']:.1f}",
            f"{each['pinned_scan_s']:.3f}",
            f"{each['rebuilt_scan_s']:.3f}",
            f"{each['rebuilt_first_row_ms']:.0f}",
            f"{each['live_scan_s']:.3f}",
        )
        for each in found["steps"]
    )
    return _rows(f"As of changes ago, a table of {found['rows']} rows", heads, rows)


def _rows(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if not place else "right")
    for row in rows:
        table.add_row(*row)
    return table
