"""A scan loses and repeats nothing, wherever its connection is cut: every end of a frame, and places inside frames.

`python -m bench cuts` runs the same with more rows, at every place of every scenario.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import scanner
from bench.cutting.setting import CONFIG, QUIET, SCENARIOS, ImageFate, Scenario, open_campaign
from bench.cutting.stream import Cut, CutStream, Direction
from bench.questions.cuts import run_cuts, run_killed, run_scenario
from bench.simulation.network import Network
from bench.simulation.pipes import Line
from scanner.server.scan.read_sources import ReadSource, ReadSources
from scanner.server.server import open_server
from scanner.server.tables.snapshots import SnapshotPool
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from tests.support.conformance import read
from tests.support.models import PAGED, PUSH, Model
from tests.support.nightly import everyday
from tests.support.scans import SCHEMA, released, sample

if TYPE_CHECKING:
    from bench.cutting.campaign import Tally
    from tests.continuation.conftest import CutPoints

SEED = 4
SAMPLED = [scenario for scenario in SCENARIOS if scenario is not QUIET]


@pytest.fixture
def read_sources(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What every scan that was opened was read from."""
    found: list[str] = []
    real_open = ReadSources.open

    def open_one(self: ReadSources, *arguments: object, **options: object) -> object:
        reading = real_open(self, *arguments, **options)  # type: ignore[arg-type]
        found.append(reading.read_source)
        return reading

    monkeypatch.setattr(ReadSources, "open", open_one)
    return found


async def test_a_push_scan_cut_at_every_frame(
    autojump_clock: trio.testing.MockClock, cut_points: CutPoints
) -> None:
    """After every frame of either direction, and at places inside frames: 0 lost, 0 repeated, the same digest."""
    found = await run_scenario(QUIET, MemoryStore(), 350, "all", 30, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    assert found.tally.refused == []
    # What a cut leaves behind is not always the same, so a run may have a few frames less than the one before.
    assert found.tally.struck > 0.8 * (found.frames + 30)
    assert found.tally.resumes > 0.6 * found.frames


@pytest.mark.parametrize("scenario", SAMPLED, ids=lambda scenario: scenario.name)
async def test_every_scenario(
    scenario: Scenario,
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
    cut_points: CutPoints,
    read_sources: list[str],
) -> None:
    """With a writer, an emptied registry, after a compaction, by every pull model, and with images, at some places."""
    has_image = scenario.image is not ImageFate.NONE
    places = everyday("6", nightly="8") if has_image else everyday("7", nightly="20")
    found = await run_scenario(scenario, MemoryStore(images=tmp_path), 400, places, 0, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    assert found.tally.resumes >= (1 if has_image else 2)
    if scenario.empties_registry:
        rebuilt = read_sources.count(ReadSource.AS_OF) + read_sources.count(ReadSource.IMAGE)
        assert rebuilt >= found.tally.resumes
    if has_image:
        assert read_sources.count(ReadSource.IMAGE) >= 2
    if scenario.image in {ImageFate.IN_TURNS, ImageFate.DAMAGED}:
        assert set(read_sources) > {ReadSource.IMAGE}
    if scenario.mode != "session":
        assert found.tally.refused == []


@pytest.mark.rocks
@pytest.mark.parametrize("name", ["quiet", "compaction"])
async def test_on_the_real_store(
    tmp_path: Path, name: str, autojump_clock: trio.testing.MockClock, cut_points: CutPoints
) -> None:
    """The same on RocksDB, also with a checkpoint and a full compaction while the scan is cut off."""
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == name)
    with RocksStore.open(tmp_path) as store:
        found = await run_scenario(scenario, store, 400, everyday("8", nightly="15"), 3, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    assert found.tally.resumes >= 5


@pytest.mark.parametrize("model", [PUSH, *PAGED], ids=str)
async def test_a_scan_of_many_buckets(model: Model, autojump_clock: trio.testing.MockClock) -> None:
    """All buckets of a table scan share the connection that is cut, and each goes on where it was."""
    network = Network(lambda _connection, _fault: None)
    streams: list[CutStream] = []
    cuts: list[Cut] = []

    async def dial() -> trio.abc.Stream:
        stream = await network.dial("client", Line())
        streams.append(CutStream(stream, cuts.pop() if cuts else None))
        return streams[-1]

    async with (
        open_server(MemoryStore(), config=CONFIG, listener=network.listen()) as server,
        scanner.connect("127.0.0.1", dial=dial, rng=random.Random(SEED)) as client,
    ):
        table = await client.create_table("items", SCHEMA, ["id"], 3)
        await table.write(sample(range(600)))
        whole = await read(model.scan(table, 2_000))
        resumes = 0
        for frames in range(3, 60, everyday(16, nightly=8)):
            # The next connections are cut after so many frames each, as long as there are cuts left.
            cuts[:] = [Cut(Direction.DOWN, frames=frames), Cut(Direction.DOWN, frames=frames + 5)]
            async with scanner.connect("127.0.0.1", dial=dial, rng=random.Random(frames)) as cut_client:
                found = await read(model.scan(await lookup(cut_client), 2_000))
            resumes += found.statistics.resumes
            assert sorted(found.ids) == list(range(600))
            assert found.statistics.digest == whole.statistics.digest
        with trio.move_on_after(100):  # what was kept in case that its client comes back goes by itself
            await trio.sleep_forever()
        await released(server)

    assert resumes > 3


async def lookup(client: scanner.Client) -> scanner.Table:
    """The table; looking it up is no scan, and whoever wants it in spite of a cut asks again."""
    while True:
        with suppress(scanner.ServerUnavailable):
            return await client.table("items")


async def cut_last_pages(name: str) -> Tally:
    """Cut a scenario behind each of its last frames."""
    (scenario,) = (scenario for scenario in SCENARIOS if scenario.name == name)
    async with open_campaign(MemoryStore(), 100, scenario, random.Random(SEED)) as campaign:
        recording = await campaign.record()
        assert not recording.failed
        down = len(recording.ends[Direction.DOWN])
        return await run_cuts(campaign, [Cut(Direction.DOWN, frames=down - back) for back in range(6)])


async def test_a_session_past_its_last_page(autojump_clock: trio.testing.MockClock) -> None:
    """What a session lacks: where the cut takes the last page away it is over. It says so; it never ends short."""
    tally = await cut_last_pages("session")

    assert tally.perfect, str(tally)
    assert 0 < len(tally.refused) < 6


@pytest.mark.parametrize("lingers", [True, False])
async def test_a_scan_by_token_past_its_last_page(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, lingers: bool
) -> None:
    """It can ask for its last page again; a server that lets go of the snapshot at once is found out."""
    if not lingers:
        monkeypatch.setattr(SnapshotPool, "let_linger", lambda *_: False)
    tally = await cut_last_pages("token")

    assert tally.perfect == lingers, str(tally)
    assert tally.violated == (set() if lingers else {"resumable"})
    assert all("the snapshot of this scan by token is gone" in failure for failure in tally.failed)


@pytest.mark.rocks
@pytest.mark.socket
async def test_a_server_that_is_killed(tmp_path: Path, cut_points: CutPoints) -> None:
    """A process, SIGKILL with every cut, a restart and a write before the scan goes on."""
    found = await run_killed(tmp_path / "data", 1500, 2, SEED)
    cut_points.add(found)

    assert found.tally.perfect, str(found.tally)
    assert found.tally.resumes == found.tally.struck == 2
