"""The page models' pure client: which request is next, and what a page means."""

from __future__ import annotations

import functools

import pyarrow as pa
import pytest

from scanner.client.scan.columns import as_asked
from scanner.client.scan.page_receiver import PageReceiver
from scanner.client.scan.resume_position import BucketPosition
from scanner.client.scan.statistics import BucketProgress
from scanner.data.digest import checksum
from scanner.errors import DataCorrupted, ScanIncomplete, ScannerError, SchemaMismatch
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.arrow_ipc import encode_batch, encode_schema
from tests.support.models import PAGED

SCHEMA = pa.schema([("k", pa.int64())])
MODELS = {model.name: model.page_model for model in PAGED}

every_model = pytest.mark.parametrize("model", MODELS)
isolated_models = pytest.mark.parametrize("model", ["token", "asof"])


def page(
    values: list[int],
    ordinal: int = 0,
    *,
    first: bool = False,
    token: bytes = b"",
    total: int | None = None,
    **fields: object,
) -> bytes:
    """A response; `total` makes it a complete last page."""
    response = pb.ScanPageResponse(
        has_more_results=total is None, resume_token=token, row_ordinal=ordinal, log_offset=17
    )
    if first:
        response.arrow_schema = encode_schema(SCHEMA)
    if values:
        payload = encode_batch(pa.record_batch({"k": values}, schema=SCHEMA)).to_pybytes()
        response.arrow_batch, response.row_count, response.crc32c = payload, len(values), checksum(payload)
    if total is not None:
        response.rows, response.digest = total, 99
    for name, value in fields.items():
        setattr(response, name, value)
    return response.SerializeToString()


@pytest.fixture
def progress() -> BucketProgress:
    """Fresh counters."""
    return BucketProgress(bucket=0)


def receiver(
    progress: BucketProgress,
    model: str = "token",
    as_of: int | None = None,
    history: bytes = b"",
    **query: object,
) -> PageReceiver:
    """A scan that has not begun."""
    asked = pb.ScanQuery(table="t", **query)  # type: ignore[arg-type]
    return PageReceiver(
        "t bucket 0", MODELS[model], asked, 1_000, SCHEMA, progress, as_of, history, as_asked()
    )


@every_model
def test_each_page_fetches_the_next(progress: BucketProgress, model: str) -> None:
    """The query goes with every request, and the token of the page before; the same again until its page came."""
    scan = receiver(progress, model)
    tokens = [b"", b"a", b"b"]
    for ordinal, (token, following) in enumerate(zip(tokens, [*tokens[1:], b"c"], strict=True)):
        for _ in range(2):
            request = scan.next_request()
            assert (request.model, request.query.table, request.resume_token) == (MODELS[model], "t", token)
            assert (request.batch_size_bytes, request.close) == (1_000, False)
        assert scan.receive(page([ordinal], ordinal, first=not ordinal, token=following)) is not None
    assert (scan.is_open, scan.keeps) == (model == "token", model == "token")
    assert scan.receive(page([], 3, total=3)) is None
    assert (scan.ended, scan.is_open) == (True, False)
    assert (progress.log_offset, progress.states, progress.digest) == (17, 1, 99)
    assert progress.reason == "EXHAUSTED"


def test_single_page_leaves_nothing_to_release(progress: BucketProgress) -> None:
    """A scan that fits into its first page is over."""
    scan = receiver(progress)
    assert scan.receive(page([], first=True, total=0)) is None
    assert (scan.ended, scan.is_open) == (True, False)


def test_release_names_the_newest_token(progress: BucketProgress) -> None:
    """It says what is let go of; the request for the next page is unharmed by that."""
    scan = receiver(progress)
    scan.receive(page([1], first=True, token=b"a"))
    release = scan.release_request()
    assert (release.close, release.resume_token, release.model) == (True, b"a", pb.PAGE_MODEL_TOKEN)
    assert not scan.next_request().close


def test_limit_is_the_reason_when_it_is_reached(progress: BucketProgress) -> None:
    """A scan that ended at its limit says so."""
    receiver(progress, row_limit=2).receive(page([1, 2], first=True, total=2))
    assert progress.reason == "LIMIT"
    receiver(progress, row_limit=3).receive(page([1, 2], first=True, total=2))
    assert progress.reason == "EXHAUSTED"
    receiver(progress, row_limit=0).receive(page([], first=True, total=0))
    assert progress.reason == "LIMIT"


@isolated_models
def test_page_of_another_state_is_corruption(progress: BucketProgress, model: str) -> None:
    """Rows of two states are never mixed."""
    scan = receiver(progress, model)
    scan.receive(page([1], first=True, token=b"a"))
    with pytest.raises(DataCorrupted, match="log offset 18, not 17"):
        scan.receive(page([2], 1, token=b"b", log_offset=18))


@isolated_models
def test_page_of_another_history_is_corruption(progress: BucketProgress, model: str) -> None:
    """The same offset of a bucket that was restored meanwhile is another state."""
    scan = receiver(progress, model)
    scan.receive(page([1], first=True, token=b"a", history=b"h"))
    with pytest.raises(DataCorrupted, match="another history"):
        scan.receive(page([2], 1, token=b"b", history=b"g"))


def test_state_that_was_not_asked_for_is_corruption(progress: BucketProgress) -> None:
    """A scan as of an offset is not content with another, from the first page on."""
    scan = receiver(progress, "asof", as_of=16)
    assert scan.next_request().as_of == 16
    with pytest.raises(DataCorrupted, match="log offset 17, not 16"):
        scan.receive(page([1], first=True, token=b"a"))


def test_a_server_that_names_no_history_has_not_looked_at_the_one_asked_for(progress: BucketProgress) -> None:
    """An older one reads as of that offset of whichever log it has now; a later history holds the state, too."""
    scan = receiver(progress, "asof", as_of=17, history=b"h")
    assert (scan.next_request().as_of, scan.next_request().as_of_history) == (17, b"h")
    with pytest.raises(DataCorrupted, match="another history"):
        scan.receive(page([1], first=True, token=b"a"))
    assert scan.receive(page([1], first=True, token=b"a", history=b"g"))
    with pytest.raises(DataCorrupted, match="another history"):
        scan.receive(page([2], 1, token=b"b", history=b"h"))


@pytest.mark.parametrize("token", [b"", b"a"])
def test_going_on_where_another_scan_stood_is_in_the_same_state(
    progress: BucketProgress, token: bytes
) -> None:
    """With its token if a page had come, else as of its offset; the rows are counted on, of no other history."""
    at = BucketPosition(log_offset=17, history=b"h", token=token, rows=3 if token else 0)
    scan = receiver(progress, "asof", as_of=5, history=b"f")
    scan.go_on_at(at)
    request = scan.next_request()
    named = (17, b"h") if not token else (0, b"")
    assert (request.resume_token, request.as_of, request.as_of_history) == (token, *named)
    assert (request.HasField("as_of"), progress.resumes) == (not token, int(bool(token)))
    first = functools.partial(page, [1], first=not token, ordinal=at.rows, token=b"b")
    for wrong in first(log_offset=18, history=b"h"), first(history=b"g"), first():
        with pytest.raises(DataCorrupted):
            scan.receive(wrong)
    assert scan.receive(first(history=b"h"))
    assert scan.behind is not None
    assert (scan.behind.token, scan.behind.rows, scan.behind.history) == (b"b", at.rows + 1, b"h")
    scan.receive(page([], at.rows + 1, total=at.rows + 1, history=b"h"))
    assert (scan.behind.token, scan.behind.reason) == (b"", "EXHAUSTED")


def test_states_of_a_cursor_are_counted(progress: BucketProgress) -> None:
    """Each page may have its own; the first one's is the scan's, and how many there were is told."""
    scan = receiver(progress, "cursor")
    for ordinal, offset in enumerate([17, 18, 18, 20]):
        scan.receive(page([ordinal], ordinal, first=not ordinal, token=b"a", log_offset=offset))
    assert (progress.log_offset, progress.states) == (17, 3)
    assert progress.freeze().states == 3


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (page([1], 1, token=b"b"), DataCorrupted),
        (page([1], 3, token=b"b"), DataCorrupted),
        (page([1], 2, token=b"b", crc32c=1), DataCorrupted),
        (page([1], 2, token=b"b", arrow_batch=b""), DataCorrupted),
        (page([1], 2, token=b"b", row_count=2), DataCorrupted),
        (page([1], 2, total=4), DataCorrupted),
        (b"\xff\xff", DataCorrupted),
        (page([1], 2), ScanIncomplete),
        (page([1], 2, has_more_results=False), ScanIncomplete),
    ],
    ids=["repeated", "gap", "checksum", "no rows", "count", "total", "garbage", "no token", "no total"],
)
def test_page_that_does_not_continue_the_scan(
    progress: BucketProgress, broken: bytes, kind: type[ScannerError]
) -> None:
    """It fails, and one that may come right when asked for again has changed nothing."""
    scan = receiver(progress)
    scan.receive(page([1, 2], first=True, token=b"a"))
    with pytest.raises(kind):
        scan.receive(broken)
    if kind is ScanIncomplete:
        assert scan.next_request().resume_token == b"a"
        assert scan.receive(page([1], 2, total=3)) is not None


def test_a_damaged_page_is_found_by_its_checksum(progress: BucketProgress) -> None:
    """Before anything reads it: what Arrow makes of damaged octets is another error, if it is one."""
    damaged = pb.ScanPageResponse.FromString(page([1, 2], first=True, token=b"a"))
    damaged.arrow_batch = b"damaged" + damaged.arrow_batch[7:]
    with pytest.raises(DataCorrupted, match="its checksum is"):
        receiver(progress).receive(damaged.SerializeToString())


def test_replaced_table_is_a_mismatch(progress: BucketProgress) -> None:
    """A first page of another schema fails the scan."""
    other = encode_schema(pa.schema([("k", pa.string())]))
    with pytest.raises(SchemaMismatch):
        receiver(progress).receive(page([], first=True, total=0, arrow_schema=other))
