"""`weir adopt`."""

from __future__ import annotations

from pathlib import Path

import click

from scanner.cli.app import example, fail, note, tell_done
from scanner.cli.display import print_table
from scanner.cli.options import data_option
from scanner.cli.units import counted
from scanner.storage.rocksdb.adopt import Unnamed, adopt, rebuild_catalog, unnamed_tables


@click.command(
    "adopt",
    epilog=example(
        "weir adopt --data ./data           list directories that no table names",
        "weir adopt --data ./data 000007    bring back the table in tables/000007",
        "weir adopt --data ./data 000007 --as orders2",
        "weir adopt --data ./data --rebuild     a catalog that is damaged or gone",
    ),
)
@click.argument("directory", required=False)
@data_option("The data directory; no server may have it open.", exists=True)
@click.option("--as", "name", metavar="NAME", help="Name for the table. [default: its old name]")
@click.option("--rebuild", is_flag=True, help="Rebuild the whole catalog; the old one is kept beside it.")
def adopt_table(directory: str | None, data: Path, name: str | None, rebuild: bool) -> None:
    """Bring back tables that are in a data directory and not in its catalog.

    A server reports them when it starts, as after an older catalog was restored. Nothing is deleted.
    """
    data = data.absolute()
    if rebuild:
        if directory is not None or name is not None:
            fail("--rebuild takes every table under its own name; leave DIRECTORY and --as out")
        tables, left = rebuild_catalog(data)
        tell_done(
            f"the catalog names {counted(len(tables), 'table')}: {', '.join(sorted(t.name for t in tables)) or '-'}"
        )
        _print(left)
    elif directory is not None:
        tell_done(f"the catalog names table {adopt(data, directory, name).name} in {directory}")
    elif name is not None:
        fail("--as needs the DIRECTORY of the table")
    else:
        unnamed = unnamed_tables(data)
        if not unnamed:
            note("the catalog names every directory in tables/")
        _print(unnamed)


def _print(unnamed: list[Unnamed]) -> None:
    if unnamed:
        print_table(
            {
                "directory": [each.directory for each in unnamed],
                "table": ["" if each.description is None else each.description.name for each in unnamed],
                "problem": [each.problem for each in unnamed],
            }
        )
