"""`python -m bench NAME` runs one bench; `python -m bench --help` lists them."""

import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import click
from rich.console import Console

from bench.harness.bars import Bar, failures
from bench.harness.errors import BenchFailed
from scanner import ScannerError

INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., object])


def _checked_file(context: click.Context, parameter: click.Parameter, output: Path | None) -> Path | None:
    if output is not None:
        _checked_folder(context, parameter, output.parent)
    return output


def _checked_folder(context: click.Context, parameter: click.Parameter, folder: Path | None) -> Path | None:
    """Make a directory, and refuse one that takes no files now: not when everything is measured."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise click.BadParameter(f"cannot write into {folder}: {error.strerror}") from error
    return folder


_json = click.option(
    "--json",
    "output",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_checked_file,
    help="Write the measurements here.",
)
_plots = click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    callback=_checked_folder,
    metavar="DIR",
    help="Draw pictures there.",
)


def _number(name: str, default: int, about: str, *, least: int = 1) -> Callable[[Command], Command]:
    return click.option(name, type=click.IntRange(least), default=default, show_default=True, help=about)


def _numbers(*names: str, about: str) -> Callable[[Command], Command]:
    return click.option(*names, type=click.IntRange(1), multiple=True, help=about)


def _rounds(default: int = 5) -> Callable[[Command], Command]:
    return _number("--rounds", default, "Interleaved rounds.")


@click.group()
def main() -> None:
    """Benches of weir: one question each, answered against a running server."""


@main.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_checked_file,
    default=Path("demo.json"),
    show_default=True,
)
@_number("--rounds", 2, "Scans per mode and bucket under writes.")
@click.option("--seed", type=int, default=2013, show_default=True, help="Chooses what the writer changes.")
def demo(output: Path, rounds: int, seed: int) -> None:
    """Real flights, pushed into Spark while they change, beside the pull way.

    Takes about two minutes. Example: python -m bench demo --rounds 5
    """
    # Spark's JVM and the libraries of its workers load only when a bench wants them, not for --help.
    from bench.demo.demo import run

    run(output, Console(), rounds=rounds, seed=seed)
    click.echo(f"all as it must be; the numbers are in {output}")


@main.command()
@_json
@_rounds()
@click.option(
    "--mb", "megabytes", type=click.IntRange(10), default=1000, show_default=True, help="A round's MB."
)
@_numbers("--size", "sizes", about="Message bytes; may be repeated.")
@_numbers("--streams", about="Concurrent calls; may be repeated.")
@click.option("--tls/--plaintext", "tls", default=None, help="Only this; both by default.")
def transport(
    output: Path | None,
    rounds: int,
    megabytes: int,
    sizes: tuple[int, ...],
    streams: tuple[int, ...],
    tls: bool | None,
) -> None:
    """Server streaming by weir's transport, by grpcio and by bare TCP.

    Takes about ten minutes. Example: python -m bench transport --size 4096 --size 65536 --streams 1 --plaintext
    """
    from bench.harness.memory import touch_memory
    from bench.questions.transport import MESSAGE_SIZES, run

    touch_memory()
    _judge(
        run(
            output,
            Console(),
            rounds=rounds,
            megabytes=megabytes,
            sizes=sizes or MESSAGE_SIZES,
            streams=streams or (1, 16),
            tls=(False, True) if tls is None else (tls,),
        )
    )


@main.command()
@_json
def scale(output: Path | None) -> None:
    """10 000 idle streams on one server process, over 100 connections and over 10 000.

    Takes about two minutes. Example: python -m bench scale --json scale.json
    """
    from bench.questions.scale import run

    _judge(run(output, Console()))


@main.command()
@_json
@_number("--rows", 100_000_000, "Of the larger table; the smaller one has a tenth.", least=1000)
def growth(output: Path | None, rows: int) -> None:
    """Does anything grow faster than the rows? A table of a hundred million, and one of a tenth.

    Takes about ten minutes, and ten gigabytes of disk. Example: python -m bench growth --rows 10000000
    """
    from bench.questions.growth import run

    _judge(run(output, Console(), rows=rows))


@main.command()
@_json
def credit(output: Path | None) -> None:
    """How far past its credit does a scan go, direct and through nginx, nghttpx and Envoy?

    Needs `make peers`; takes about a minute. Example: python -m bench credit --json credit.json
    """
    from bench.questions.credit import run

    _judge(run(output, Console()))


@main.command()
@_json
@_rounds(3)
@_number("--megabytes", 200, "Rows of one scan.", least=10)
def credit_sizes(output: Path | None, rounds: int, megabytes: int) -> None:
    """Fixed credit and the one that sizes itself, over lines of 0 to 100 ms.

    Takes about ten minutes. Example: python -m bench credit-sizes --rounds 3 --json credit-sizes.json
    """
    from bench.questions.credit_sizes import run

    _judge(run(output, Console(), rounds=rounds, megabytes=megabytes))


@main.command()
@_json
@_rounds()
def neighbours(output: Path | None, rounds: int) -> None:
    """Does one stream that is not read slow the other 99 on its connection?

    Example: python -m bench neighbours --rounds 9
    """
    from bench.questions.neighbours import run

    _judge(run(output, Console(), rounds=rounds))


@main.command()
@_json
@click.option("--minutes", type=click.FloatRange(0.05), default=5.0, show_default=True, help="How long.")
@click.option("--seed", type=int, default=None, help="Chooses who does what; a random one is printed.")
def stress(output: Path | None, minutes: float, seed: int | None) -> None:
    """Consumers of every kind, writers and faults against one `weir serve`; nothing may be wrong or left behind.

    Example: python -m bench stress --minutes 1 --seed 7
    """
    from bench.questions.stress import run

    _judge(run(output, Console(), seconds=minutes * 60, seed=seed))


@main.command()
@_json
@click.option(
    "--only", multiple=True, metavar="TEXT", help="Attacks with this in their name; may be repeated."
)
def abuse(output: Path | None, only: tuple[str, ...]) -> None:
    """What hostile peers do to a server, and what is left for a well-behaved client meanwhile.

    Takes about nine minutes. Example: python -m bench abuse --json bench/results/abuse.json
    """
    from bench.questions.abuse import run

    _judge(run(output, Console(), only=only))


@main.command()
@_json
def budgets(output: Path | None) -> None:
    """How far is grpcio from the budgets that end an abusive connection?

    Example: python -m bench budgets --json budgets.json
    """
    from bench.questions.budgets import run

    _judge(run(output, Console()))


@main.command()
@_json
@_number("--seeds", 500, "How many runs.")
@click.option("--first-seed", type=int, default=0, show_default=True, help="Seed of the first of them.")
@click.option("--seed", type=int, default=None, help="Only this one.")
@click.option("--verbose", "-v", is_flag=True, help="Print everything that happens.")
def simulate(output: Path | None, seeds: int, first_seed: int, seed: int | None, verbose: bool) -> None:
    """Server, clients, writers and network in one seeded run on a virtual clock; every row is judged.

    Example: python -m bench simulate --seeds 5000 --json simulate.json
    """
    from bench.questions.simulate import run

    if seed is not None:
        first_seed, seeds = seed, 1
    _judge(run(output, Console(), seeds=seeds, first_seed=first_seed, verbose=verbose))


@main.command()
@_json
@click.option(
    "--quick", is_flag=True, help="Little of everything, in less than a minute; ratios are not judged."
)
@_plots
def continuation(output: Path | None, quick: bool, plots: Path | None) -> None:
    """Push, session, token, cursor and as-of pages: speed, what the server keeps, cuts, writers, isolation.

    Takes about seven minutes. Example: python -m bench continuation --json c.json --plots docs/plots
    """
    from bench.questions.continuation.comparison import FULL, QUICK, run

    _judge(run(output, plots, Console(), scale=QUICK if quick else FULL))


@main.command()
@_json
@_rounds()
@_number("--requests", 20, "Of each round.")
@_number("--rows", 8192, "Of a request.")
@_number("--large", 300_000, "Rows of one large commit.")
@_number("--load", 5_000_000, "Rows of the file that is loaded.")
def writes(output: Path | None, rounds: int, requests: int, rows: int, large: int, load: int) -> None:
    """Commits beside rocksdict's own batches, and what scans wait for beside a large one.

    Takes about two minutes. Example: python -m bench writes --rounds 3 --requests 5
    """
    from bench.questions.writes import run

    _judge(run(output, Console(), rounds=rounds, requests=requests, rows=rows, large=large, load=load))


@main.command()
@_json
@_plots
@click.option(
    "--part",
    "parts",
    type=click.Choice(["scans", "tls", "cold", "first", "concurrent", "far", "growth", "calls"]),
    multiple=True,
    help="Only this; may be repeated.",
)
@_number("--rows", 1_000_000, "Of 86 B each.", least=100_000)
@click.option(
    "--width",
    "widths",
    type=click.Choice(["86", "1024"]),
    multiple=True,
    help="Scans: bytes of a row; may be repeated; both by default.",
)
@_numbers("--buckets", about="Scans: of the table; may be repeated; 1 and 4 by default.")
@_numbers(
    "--crowd", "crowds", about="Concurrent: so many scans; may be repeated; 1, 4, 16 and 64 by default."
)
@_number("--crowd-rows", 50_000, "Concurrent: of the table.", least=8192)
@_number("--far-rows", 10_000_000, "Far: of the table.", least=1000)
@_rounds()
@_number("--calls", 2000, "Calls: of a round.")
def peers(
    output: Path | None,
    plots: Path | None,
    parts: tuple[str, ...],
    rows: int,
    widths: tuple[str, ...],
    buckets: tuple[int, ...],
    crowds: tuple[int, ...],
    crowd_rows: int,
    far_rows: int,
    rounds: int,
    calls: int,
) -> None:
    """Scans and calls beside Arrow Flight, grpcio, Parquet and DuckDB: whole, short, many, far, and how they grow.

    Takes about fifteen minutes on two cores. Example: python -m bench peers --part concurrent --crowd 64 --rounds 3
    """
    from bench.harness.memory import touch_memory
    from bench.questions.peers import PARTS, Scale, run

    touch_memory()
    scale = Scale(
        parts=parts or PARTS,
        rows=rows,
        widths=widths or ("86", "1024"),
        buckets=buckets or (1, 4),
        crowds=crowds or (1, 4, 16, 64),
        crowd_rows=crowd_rows,
        far_rows=far_rows,
        rounds=rounds,
        call_count=calls,
    )
    _judge(run(output, plots, Console(), scale=scale))


@main.command()
@_json
@_plots
@click.option(
    "--part",
    "parts",
    type=click.Choice(["latency", "throughput", "idle", "slow"]),
    multiple=True,
    help="Only this; may be repeated.",
)
@_numbers("--tails", about="Latency: so many; may be repeated.")
@_numbers("--readers", about="Throughput: so many; may be repeated.")
@click.option(
    "--distance-ms", "distances", type=click.FloatRange(0), multiple=True, help="Round trip; may be repeated."
)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Of writing for a latency."
)
@_number("--rows", 100_000, "Throughput: of a run.", least=500)
@_number("--idle", 10_000, "Idle tails.")
@_number("--rounds", 9, "Beside a slow tail.")
def tail(
    output: Path | None,
    plots: Path | None,
    parts: tuple[str, ...],
    tails: tuple[int, ...],
    readers: tuple[int, ...],
    distances: tuple[float, ...],
    seconds: float,
    rows: int,
    idle: int,
    rounds: int,
) -> None:
    """Push beside long poll: how soon a commit reaches its tails, what idle ones cost, and a slow one.

    Takes about ten minutes. Example: python -m bench tail --part latency --tails 10 --seconds 3
    """
    from bench.questions.tail import PARTS, READERS, ROUND_TRIPS_S, TAILS, Scale, run

    scale = Scale(
        parts=parts or PARTS,
        tails=tails or TAILS,
        readers=readers or READERS,
        round_trips_s=[each / 1000 for each in distances] or ROUND_TRIPS_S,
        seconds=seconds,
        rows=rows,
        idle_tails=idle,
        idle_connections=max(1, idle // 100),
        slow_rounds=rounds,
    )
    _judge(run(output, plots, Console(), scale=scale))


@main.command()
@_json
@click.option(
    "--scale", type=click.FloatRange(0.001), default=0.1, show_default=True, help="TPC-H's scale factor."
)
@click.option(
    "--query", "queries", type=click.IntRange(1, 22), multiple=True, help="Only this; may be repeated."
)
@click.option(
    "--mode",
    "modes",
    type=click.Choice(["push", "session", "token", "cursor", "asof"]),
    multiple=True,
    help="Every query in this mode; may be repeated. Otherwise all in push, and 1, 3, 6, 12 and 14 in all.",
)
@_number("--buckets", 4, "Of each large table.")
@click.option(
    "--while-writing", is_flag=True, help="Orders and their items change meanwhile; one lease is read."
)
def tpch(
    output: Path | None,
    scale: float,
    queries: tuple[int, ...],
    modes: tuple[str, ...],
    buckets: int,
    while_writing: bool,
) -> None:
    """The 22 queries of TPC-H in Spark: does weir give the answers that Parquet files give?

    Takes about five minutes. Example: python -m bench tpch --scale 0.01 --query 1 --query 6 --mode push --mode asof
    """
    from bench.questions.tpch import Plan, run
    from spark_source.options import AS_OF_MODES

    if while_writing and (present := set(modes) - set(AS_OF_MODES)):
        raise click.BadParameter(
            f"mode {min(present)} cannot read a state of the past; with --while-writing use push or asof",
            param_hint="--mode",
        )
    plan = Plan(scale=scale, buckets=buckets, modes=modes, while_writing=while_writing)
    _judge(run(output, Console(), plan=replace(plan, queries=queries) if queries else plan))


@main.command()
@_json
@_number("--rows", 3_000_000, "Of a read.", least=1000)
@_rounds()
@_numbers("--tasks", about="So many; may be repeated; 1, 2 and 4 by default.")
@click.option("--image", "images", is_flag=True, help="The server reads from a columnar image.")
def spark(output: Path | None, rows: int, rounds: int, tasks: tuple[int, ...], images: bool) -> None:
    """Rows a second that Spark reads from weir, beside batches that are ready in memory.

    Takes about five minutes. Example: python -m bench spark --rows 500000 --rounds 3 --tasks 1 --tasks 2
    """
    from bench.questions.spark import TASKS, run

    _judge(run(output, Console(), rows=rows, rounds=rounds, tasks=tasks or TASKS, images=images))


@main.command("spark-write")
@_json
@_number("--rows", 1_000_000, "Of a write.", least=1000)
@_rounds()
@_number("--tasks", 2, "Of Spark's writes.")
@_number("--buckets", 4, "Of the tables.")
def spark_write(output: Path | None, rows: int, rounds: int, tasks: int, buckets: int) -> None:
    """Rows a second that Spark writes to weir, beside a client that writes them.

    Takes about five minutes. Example: python -m bench spark-write --rows 200000 --rounds 3
    """
    from bench.questions.spark_write import run

    _judge(run(output, Console(), rows=rows, rounds=rounds, tasks=tasks, buckets=buckets))


@main.command()
@_json
@_number("--rows", 1_000_000, "Of the bucket.", least=1000)
@_rounds()
def image(output: Path | None, rows: int, rounds: int) -> None:
    """Whole scans from an image beside those of the row store, fresh and after changes.

    Takes about two minutes. Example: python -m bench image --rows 200000
    """
    from bench.harness.memory import touch_memory
    from bench.questions.image import run

    touch_memory()
    _judge(run(output, Console(), rows=rows, rounds=rounds))


@main.command("image-building")
@_json
@_number("--rows", 2_000_000, "Of the bucket.", least=1000)
@_rounds(3)
def image_building(output: Path | None, rows: int, rounds: int) -> None:
    """Short scans and writes while an image is made, and while none is.

    Takes about three minutes. Example: python -m bench image-building --rows 400000 --rounds 1
    """
    from bench.questions.image_building import run

    _judge(run(output, Console(), rows=rows, rounds=rounds))


@main.command("as-of")
@_json
@_number("--rows", 1_000_000, "Of the bucket.")
@_number("--changes", 1_000_000, "Since the offset.", least=0)
@_number("--request-rows", 10_000, "Of each request that has made them.")
@_number("--memory-mib", 64, "What the overlay may take.")
def as_of(output: Path | None, rows: int, changes: int, request_rows: int, memory_mib: int) -> None:
    """A bucket as of an offset that many changes have passed since: how fast, and in how much memory?

    Takes less than a minute. Example: python -m bench as-of --rows 100000 --changes 100000 --memory-mib 4
    """
    from bench.questions.as_of import run

    _judge(
        run(
            output,
            Console(),
            rows=rows,
            changes=changes,
            request_rows=request_rows,
            memory_mib=memory_mib,
        )
    )


@main.command()
@_json
@_number("--rows", 3000, "Of the table.", least=100)
@click.option(
    "--positions",
    default="all",
    show_default=True,
    help="`frames`: every end of a frame; `all`: those, and places inside; or a number of ends of frames.",
)
@_number("--inside", 200, "Places inside frames, by chance.", least=0)
@click.option("--store", type=click.Choice(["memory", "rocks"]), default="memory", show_default=True)
@click.option("--only", multiple=True, metavar="NAME", help="Only this scenario; may be repeated.")
@click.option("--seed", type=int, default=4, show_default=True, help="Chooses what is left to chance.")
def cuts(
    output: Path | None,
    rows: int,
    positions: str,
    inside: int,
    store: str,
    only: tuple[str, ...],
    seed: int,
) -> None:
    """Scans cut at every place, in every model: is a row lost or repeated, or a digest changed?

    Takes some hundred minutes, and says each scenario as it ends. Example:
    python -m bench cuts --rows 1000 --only quiet --only killed
    """
    from bench.questions.cuts import NAMES, run

    if positions not in ("all", "frames") and not positions.isdecimal():
        raise click.BadParameter("all, frames, or a number", param_hint="--positions")
    if unknown := set(only) - set(NAMES):
        raise click.BadParameter(
            f"no scenario {sorted(unknown)}; there are {', '.join(NAMES)}", param_hint="--only"
        )
    rocks = store == "rocks"
    _judge(
        run(
            output,
            Console(),
            keys=rows,
            positions=positions,
            inside=inside,
            rocks=rocks,
            names=only,
            seed=seed,
        )
    )


@main.command("tail-kills")
@_json
@_number("--kills", 50, "How often.")
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses the writes and the moments.")
def tail_kills(output: Path | None, kills: int, seed: int) -> None:
    """Snapshot and changes under a server that is killed: do they give the table at every later commit?

    Takes about five minutes. Example: python -m bench tail-kills --kills 10 --seed 7
    """
    from bench.questions.tail_kills import run

    _judge(run(output, Console(), kills=kills, seed=seed))


@main.command()
@_json
@_number("--kills", 20, "How often.")
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses the writes and the moments.")
def replica(output: Path | None, kills: int, seed: int) -> None:
    """A table that a stream of Spark keeps a copy of another, killed on the way: is it one, and each change once?

    Takes about ten minutes. Example: python -m bench replica --kills 3 --seed 7
    """
    from bench.questions.replica import run

    _judge(run(output, Console(), kills=kills, seed=seed))


@main.command()
@_json
@_number("--cases", 1000, "How many.")
@click.option("--seed", type=int, default=1, show_default=True, help="Chooses histories and faults.")
@click.option("--case", type=click.IntRange(0), default=None, help="Only this one.")
@_number("--jobs", 1, "How many at a time.")
def faults(output: Path | None, cases: int, seed: int, case: int | None, jobs: int) -> None:
    """Damaged, moved, older and withheld files: an error, or exactly a state that was acknowledged?

    Takes about half an hour. Example: python -m bench faults --cases 200 --seed 7
    """
    from bench.questions.faults import run

    chosen = range(cases) if case is None else range(case, case + 1)
    _judge(run(output, Console(), seed=seed, cases=chosen, jobs=jobs))


@main.command()
@_json
@click.option("--seed", type=int, default=1, show_default=True, help="Draws the mutants.")
@_number("--count", 60, "How many mutants.")
@click.option(
    "--only", multiple=True, metavar="TEXT", help="Modules with this in their path; may be repeated."
)
@_number("--jobs", 1, "How many at a time.")
@click.option(
    "--again",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Try the survivors in this JSON of an earlier run, and no others.",
)
@click.option(
    "--map",
    "kept",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep here which test executes what, and run only changed tests for that the next time.",
)
def mutants(
    output: Path | None,
    seed: int,
    count: int,
    only: tuple[str, ...],
    jobs: int,
    again: Path | None,
    kept: Path | None,
) -> None:
    """Small changes of the modules that carry guarantees: which of them does no test notice?

    Takes half an hour. Example: python -m bench mutants --seed 7 --count 20 --only scanner/data/keys.py
    """
    from bench.questions.mutants import run, run_again

    if again is not None:
        _judge(run_again(again, output, Console(), jobs=jobs, kept=kept))
    else:
        _judge(run(output, Console(), seed=seed, count=count, only=only, jobs=jobs, kept=kept))


def _judge(bars: Sequence[Bar]) -> None:
    """Say which bars are missed, and end with status 1 if any is."""
    if missed := failures(bars):
        raise BenchFailed("; ".join(missed))
    met = "; ".join(f"{bar.name} {bar.value} ({bar.bar})" for bar in bars)
    click.echo(f"every bar is met: {met}" if bars else "nothing that these options measure has a bar")


def _interrupt(_: int, frame: FrameType | None) -> None:
    # By the handler of Ctrl-C: while trio runs, only its own one knows where that does no harm. A shell's background
    # process ignores Ctrl-C, and ends by this all the same.
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _end(said: str, status: int) -> NoReturn:
    click.echo(f"bench: {said}", err=True)
    sys.exit(status)


if __name__ == "__main__":
    # A bench that is ended from outside ends its children first, as on Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        main(standalone_mode=False)
    except (BenchFailed, ScannerError, click.ClickException) as error:
        _end(str(error), 1)
    except (KeyboardInterrupt, click.Abort):
        _end("interrupted", INTERRUPTED)
    except BaseExceptionGroup as group:  # of a nursery
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        _end("interrupted", INTERRUPTED)
