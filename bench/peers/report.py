"""The tables of `python -m bench peers`, from its JSON alone: a list of sheets for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from bench.harness.sheet import Sheet
from bench.harness.spread import ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Rows = Sequence[Mapping[str, Any]]
_SPREAD: Final = "median (least to most)"
_COSTS: Final = "CPU us and MB: server + client"


def sheets(document: Mapping[str, Any], part: str) -> list[Sheet]:
    """What a part measured; of one that failed, or was not asked for, nothing.

    Args:
        document: The JSON of the bench.
        part: One of its parts.
    """
    return _SHEETS[part](document[part]) if part in document else []


def _groups(rows: Rows, *keys: str) -> Iterable[tuple[tuple[Any, ...], Rows]]:
    for group in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        yield group, [row for row in rows if tuple(row[key] for key in keys) == group]


def _spread(figures: Mapping[str, Any], scale: float = 1.0, digits: int = 2) -> str:
    median, least, most = (f"{figures[name] * scale:.{digits}f}" for name in ("median", "min", "max"))
    return f"{median} ({least}-{most})"


def _sum(server: float | None, client: float, digits: int) -> str:
    return f"{client:.{digits}f}" if server is None else f"{server:.{digits}f}+{client:.{digits}f}"


def _megabytes(row: Mapping[str, Any]) -> str:
    server = row["server_resident_bytes"] / 1e6
    return _sum(server or None, row["client_resident_bytes"] / 1e6, 0)


def _cpu(row: Mapping[str, Any], unit: str, digits: int) -> str:
    server = row[f"server_us_per_{unit}"]["median"] if row["server_resident_bytes"] else None
    return _sum(server, row[f"client_us_per_{unit}"]["median"], digits)


def _over(mine: Mapping[str, Any] | None, theirs: Mapping[str, Any], what: str) -> str:
    return "" if mine is None else f"{ratio(mine[what]['rounds'], theirs[what]['rounds']):.2f}"


def _scans(scans: Rows) -> list[Sheet]:
    found = []
    for (count, width, buckets, tls), group in _groups(scans, "rows", "width", "buckets", "tls"):
        push = next((row for row in group if row["way"] == "push"), None)
        table = f"{count:,} rows of {width}, {buckets} bucket{'s' * (buckets != 1)}{', TLS' * tls}"
        title = f"{table}; {_SPREAD}; {_COSTS}"
        rows = [
            (
                row["way"],
                _spread(row["rows_per_s"], 1e-6),
                _over(push, row, "rows_per_s"),
                f"{row['first_batch_ms']['median']:.1f}",
                _cpu(row, "row", 2),
                _megabytes(row),
                "" if row["batch_bytes"] is None else f"{row['batch_bytes'] >> 10}",
            )
            for row in group
        ]
        headings = ("", "M rows/s", "push is", "first ms", "us a row", "MB", "KiB")
        found.append(Sheet(title, headings, rows))
    return found


def _cold(scans: Rows) -> list[Sheet]:
    rows = [
        (
            row["way"],
            _spread(row["rows_per_s"], 1e-6),
            f"{row['first_batch_ms']['median']:.0f}",
            f"{row['disk_read_mb']['median']:.0f}",
            _cpu(row, "row", 2),
            _megabytes(row),
        )
        for row in scans
    ]
    title = f"cold, {scans[0]['rows']:,} rows of {scans[0]['width']}, 1 bucket; {_SPREAD}; {_COSTS}"
    return [Sheet(title, ("", "M rows/s", "first ms", "MB from disk", "us a row", "MB"), rows)]


def _first(crowds: Rows) -> list[Sheet]:
    rows = [
        (row["way"], *(f"{row['first_batch_ms'][name]:.2f}" for name in ("p50", "p99", "min", "max")))
        for row in crowds
    ]
    return [
        Sheet("ten rows, one scan after another: first batch, ms", ("", "p50", "p99", "least", "most"), rows)
    ]


def _concurrent(part: Mapping[str, Any]) -> list[Sheet]:
    found = []
    for (writing,), group in _groups(part["crowds"], "writing"):
        rows = [
            (
                row["way"],
                str(row["scans"]),
                _spread(row["rows_per_s"], 1e-6),
                f"{row['first_batch_ms']['p50']:.0f}",
                f"{row['first_batch_ms']['p99']:.0f}",
                f"{row['least_share']['median']:.2f}",
                _cpu(row, "row", 2),
                *([f"{row['written_rows_per_s']['median'] / 1e3:.0f}"] if writing else []),
            )
            for row in group
        ]
        headings = ["", "scans", "M rows/s", "first ms p50", "p99", "least/most", "us a row"]
        beside = ", beside a writer (thousand rows a second)" * writing
        title = f"whole tables at once{beside}; {_SPREAD}; least/most: rows of two scans when the first ended"
        found.append(Sheet(title, [*headings, *["written"] * writing], rows))
    grown = [(way, f"{power:.2f}") for way, power in part["exponents"].items()]
    if grown:
        found.append(Sheet("time by the number of scans", ("", "power"), grown))
    return found


def _far(cases: Rows) -> list[Sheet]:
    rows = [
        (
            row["mode"],
            f"{row['round_trip_s'] * 1e3:g}",
            f"{row['bytes_per_s'] / 1e6:g}" if row["bytes_per_s"] else "all",
            _spread(row["rows_per_s"], 1e-6),
            f"{row['first_batch_ms']['median']:.1f}",
            f"{row['server_us_per_row']['median']:.2f}",
        )
        for row in cases
    ]
    title = f"over a line, from an image of {cases[0]['rows']:,} rows; {_SPREAD}"
    headings = ("", "round trip ms", "taken MB/s", "M rows/s", "first ms", "server us a row")
    return [Sheet(title, headings, rows)]


def _growth(part: Mapping[str, Any]) -> list[Sheet]:
    rows = [
        (
            row["by"],
            f"{row['rows']:,}",
            row["width"],
            str(row["buckets"]),
            _spread(row["seconds"], 1e3, 1),
            f"{row['seconds']['median'] / row['rows'] * 1e9:.0f}",
        )
        for row in part["tables"]
    ]
    powers = ", ".join(f"{by} {power}" for by, power in part["exponents"].items())
    title = f"growth of a scan by push; time grows with a power of {powers}; {_SPREAD}"
    return [Sheet(title, ("by", "rows", "width", "buckets", "ms", "ns a row"), rows)]


def _calls(called: Rows) -> list[Sheet]:
    weir = {row["in_flight"]: row for row in called if row["way"] == "weir"}
    rows = [
        (
            row["way"],
            str(row["in_flight"]),
            _spread(row["calls_per_s"], digits=0),
            _over(weir.get(row["in_flight"]), row, "calls_per_s"),
            _cpu(row, "call", 0),
            _megabytes(row),
        )
        for row in called
    ]
    title = f"unary calls of 100 octets; {_SPREAD}; {_COSTS}"
    return [Sheet(title, ("", "in flight", "calls/s", "weir is", "us a call", "MB"), rows)]


_SHEETS: Final[dict[str, Callable[[Any], list[Sheet]]]] = {
    "scans": _scans,
    "tls": _scans,
    "cold": _cold,
    "first": _first,
    "concurrent": _concurrent,
    "far": _far,
    "growth": _growth,
    "calls": _calls,
}
