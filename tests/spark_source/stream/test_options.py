"""Options of reads of changes: what they mean, and what is refused in one line."""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql.types import StructType

from spark_source import SourceOptionError, WeirDataSource
from spark_source.stream.options import (
    CHANGE_OPTION_NAMES,
    EARLIEST,
    LATEST,
    LEASE_TTL_S_DEFAULT,
    AtOffsets,
    AtTime,
    ChangeOptions,
    Full,
    Limits,
    Place,
)

REQUIRED = {"endpoint": "h:1", "table": "t", "readChanges": "true"}


def parse(**options: str) -> ChangeOptions:
    """The options of a read of changes."""
    return ChangeOptions.parse(REQUIRED | options)


def test_defaults() -> None:
    """Where nothing is said."""
    options = parse()
    assert (options.source.endpoint, options.source.table) == ("h:1", "t")
    assert (options.starting, options.ending, options.fail_on_data_loss) == (None, None, True)
    assert options.limits == Limits()
    assert options.source.lease_ttl_s == LEASE_TTL_S_DEFAULT
    options.require_stream()
    options.require_batch()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ("full", Full()),
        ("Earliest", AtOffsets(EARLIEST)),
        ("latest", AtOffsets(LATEST)),
        ('{"1": -1, "0": 12, "2": -2}', AtOffsets(((0, 12), (1, LATEST), (2, EARLIEST)))),
    ],
)
def test_where_to_begin(value: str, place: Place) -> None:
    """By name, or bucket by bucket as Kafka's."""
    assert parse(startingOffsets=value).starting == place


def test_a_time_counts_before_offsets() -> None:
    """As with Kafka's; without a zone it is one of UTC, and a number is milliseconds."""
    noon = AtTime(datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC))
    for value in (
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00",
        "2026-01-31 13:00:00+01:00",
        "1769860800000",
    ):
        options = parse(startingTimestamp=value, startingOffsets="earliest", endingTimestamp=value)
        assert isinstance(options.starting, AtTime)
        assert options.starting.time == noon.time
        assert isinstance(options.ending, AtTime)


def test_limits() -> None:
    """Rows, bytes with units, a minimum and how long it is waited for."""
    assert parse(
        maxRowsPerTrigger="100", maxBytesPerTrigger="2m", minRowsPerTrigger="10", maxTriggerDelay="90s"
    ).limits == Limits(rows_max=100, bytes_max=2 << 20, rows_min=10, delay_s=90.0)
    for value, seconds in (("250ms", 0.25), ("15m", 900.0), ("2 h", 7200.0)):
        assert parse(minRowsPerTrigger="1", maxTriggerDelay=value).limits.delay_s == seconds


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": "[1]"}, "startingOffsets"),
        ({"startingOffsets": "{}"}, "startingOffsets"),
        ({"startingOffsets": '{"0": 1, "0": 2}'}, "startingOffsets"),
        ({"startingOffsets": '{"0": -3}'}, "startingOffsets"),
        ({"startingOffsets": '{"0": 1.0}'}, "startingOffsets"),
        ({"startingOffsets": '{"0": true}'}, "startingOffsets"),
        ({"startingOffsets": '{"a": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{" 1": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"-1": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"1_0": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"12345678901": 1}'}, "startingOffsets"),
        ({"startingOffsets": '{"0": {"offset": 1}}'}, "startingOffsets"),
        ({"endingOffsets": "full"}, "endingOffsets"),
        ({"startingOffsets": "first", "startingTimestamp": "2026-01-31"}, "startingOffsets"),
        ({"endingOffsets": "first", "endingTimestamp": "2026-01-31"}, "endingOffsets"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
        ({"startingTimestamp": "20260131"}, "startingTimestamp"),
        ({"startingTimestamp": "1769860800"}, "startingTimestamp"),
        ({"startingTimestamp": "9" * 30}, "startingTimestamp"),
        ({"startingTimestamp": "2026-01-31T12:00:00.123456789Z"}, "no finer than microseconds"),
        ({"endingTimestamp": "2026-01-31 12:00:00,1234560"}, "no finer than microseconds"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss"),
        ({"maxRowsPerTrigger": "0"}, "maxRowsPerTrigger"),
        ({"maxRowsPerTrigger": "1k"}, "maxRowsPerTrigger"),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger"),
        ({"minRowsPerTrigger": "x"}, "minRowsPerTrigger"),
        ({"minRowsPerTrigger": "5", "maxTriggerDelay": "5"}, "maxTriggerDelay"),
        ({"maxTriggerDelay": "5s"}, "has no effect without 'minRowsPerTrigger'"),
        ({"minRowsPerTrigger": "5", "maxRowsPerTrigger": "4"}, "maxRowsPerTrigger, 4, is less"),
        ({"mode": "session"}, "does not go with readChanges"),
        ({"asOf": "12"}, "startingOffsets says"),
        ({"keyFrom": "1"}, "use option 'where'"),
        ({"pageBytes": "1m"}, "does not go with readChanges"),
        ({"statistics": "true"}, "does not go with readChanges"),
        ({"maxRowPerTrigger": "5"}, "did you mean 'maxRowsPerTrigger'"),
        ({"startingOffset": "latest"}, "did you mean 'startingOffsets'"),
        ({"nonsense": "5"}, "unknown option 'nonsense'"),
    ],
)
def test_what_is_refused(options: dict[str, str], problem: str) -> None:
    """In one line that names the option and says what it takes."""
    with pytest.raises(SourceOptionError, match=problem) as caught:
        parse(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name in CHANGE_OPTION_NAMES if name != "readChanges"])
def test_options_of_changes_do_nothing_without_them(name: str) -> None:
    """So they are refused, and say what they go with."""
    with pytest.raises(SourceOptionError, match="goes with option readChanges=true"):
        WeirDataSource({"endpoint": "h:1", "table": "t", name: "1"})


def test_what_says_no_more_than_holds_anyway_is_taken() -> None:
    """`mode=push` and `statistics=false` are the defaults of every read."""
    parse(mode="push", statistics="false")
    WeirDataSource({"endpoint": "h:1", "table": "t", "readChanges": "false"})


def test_an_option_of_writes_is_named_where_spark_is_given_the_schema() -> None:
    """Spark asks for the stream's reader at once then; `readChanges`, which is there, is not what is missing."""
    reader = WeirDataSource(REQUIRED | {"checkpointLocation": "/c"}).streamReader(StructType([]))
    with pytest.raises(SourceOptionError, match=r"'checkpointLocation'; it belongs to df\.writeStream"):
        reader.initialOffset()
