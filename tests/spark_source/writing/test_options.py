"""The options of writes are parsed once, completely, and refused in one line that says what to do."""

import pytest

from spark_source import SourceOptionError, WeirDataSource
from spark_source.options import OPTION_NAMES, WRITE_OPTION_NAMES, SourceOptions
from spark_source.stream.options import CHANGE_OPTION_NAMES
from spark_source.writing.options import CONNECTION_OPTION_NAMES, TXN_VERSION_MAX, WriteOptions
from tests.support.pickling import sent_to_worker

REQUIRED = {"endpoint": "127.0.0.1:9123", "table": "orders"}


def refused(options: dict[str, str], *, streaming: bool = False) -> SourceOptionError:
    """The error that parsing these options, together with the required ones, ends in."""
    with pytest.raises(SourceOptionError) as caught:
        WriteOptions.parse(REQUIRED | options, streaming=streaming)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("streaming", [False, True])
def test_defaults(streaming: bool) -> None:
    """The endpoint and the table are enough."""
    assert WriteOptions.parse(REQUIRED, streaming=streaming) == WriteOptions(
        target=SourceOptions(endpoint="127.0.0.1:9123", table="orders"),
        txn_name=None,
        txn_version=0,
        change_type_column="_change_type",
        requires_change_type=False,
        batch_bytes=4 << 20,
    )


def test_every_option() -> None:
    """Every option arrives in its field, parsed, whatever its case, and crosses a pickle."""
    options = WriteOptions.parse(
        {
            "ENDPOINT": "[::1]:80",
            "table": " orders ",
            "tlsCa": "/ca.pem",
            "tlsCert": "/client.pem",
            "tlskey": "/client.key",
            "tokenFile": "/token",
            "txnName": " nightly ",
            "txnversion": str(TXN_VERSION_MAX),
            "changeTypeColumn": "kind",
            "batchBytes": "64K",
        },
        streaming=False,
    )
    assert options == WriteOptions(
        target=SourceOptions(
            endpoint="[::1]:80",
            table="orders",
            tls_ca="/ca.pem",
            tls_cert="/client.pem",
            tls_key="/client.key",
            token_file="/token",
        ),
        txn_name="nightly",
        txn_version=TXN_VERSION_MAX,
        change_type_column="kind",
        requires_change_type=True,
        batch_bytes=64 << 10,
    )
    assert sent_to_worker(options) == options


@pytest.mark.parametrize(("value", "expected"), [("TRUE", True), ("false", False)])
def test_missing_batches(value: str, expected: bool) -> None:
    """Whether a stream goes on without some; a save has no batches."""
    options = {"failonmissingbatches": value}
    parsed = WriteOptions.parse(REQUIRED | options, streaming=True)
    assert parsed.fail_on_missing_batches is expected
    assert str(refused(options)).startswith("option 'failOnMissingBatches' is one of df.writeStream: ")
    error = refused({"failOnMissingBatches": "no"}, streaming=True)
    assert str(error) == "option 'failOnMissingBatches' cannot be 'no': it is true or false"


def test_what_spark_adds_to_a_stream() -> None:
    """Spark hands its own options of a query to the sink, which leaves them alone; a save has none of them."""
    of_spark = {"checkpointLocation": "/tmp/checkpoint", "queryName": "replica"}
    assert WriteOptions.parse(REQUIRED | of_spark, streaming=True) == WriteOptions.parse(
        REQUIRED, streaming=True
    )
    for name, value in of_spark.items():
        assert "is one of df.writeStream" in str(refused({name: value}))


@pytest.mark.parametrize(
    "name", [name for name in (*OPTION_NAMES, *CHANGE_OPTION_NAMES) if name not in CONNECTION_OPTION_NAMES]
)
@pytest.mark.parametrize("streaming", [False, True])
def test_options_of_reads(name: str, streaming: bool) -> None:
    """An option that only reads have is refused, and the message says where it belongs."""
    error = refused({name.lower(): "1"}, streaming=streaming)
    assert str(error) == f"option {name!r} is one of reading: it belongs to spark.read, not to a write"


@pytest.mark.parametrize("name", WRITE_OPTION_NAMES)
def test_options_of_writes_in_a_read(name: str) -> None:
    """An option that only writes have is refused when it is given to a read."""
    source = WeirDataSource(REQUIRED | {name.lower(): "1"})
    with pytest.raises(SourceOptionError, match=f"option '{name}' is one of writing: it belongs to df.write"):
        source.schema()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"txnNam": "a"},
            "unknown option 'txnNam'; did you mean 'txnName'? (the options of a write are endpoint,",
        ),
        ({"path": "/data"}, "unknown option 'path': a table has no path"),
        (
            {"token": "secret"},
            "unknown option 'token'; a token stands in a file, which option 'tokenFile' names",
        ),
        ({"endpoint": "nowhere"}, "option 'endpoint' cannot be 'nowhere': it is HOST:PORT"),
        (
            {"txnName": "a"},
            "option 'txnName' needs option 'txnVersion': together they name what is written once",
        ),
        ({"txnVersion": "1"}, "option 'txnVersion' needs option 'txnName': together they name"),
        (
            {"txnName": "a b", "txnVersion": "1"},
            "option 'txnName' cannot be 'a b': it is a name of the job's own",
        ),
        (
            {"txnName": "once:a", "txnVersion": "1"},
            "option 'txnName' cannot be 'once:a': the server forgets a name that begins with once: after an hour",
        ),
        ({"txnName": " ", "txnVersion": "1"}, "option 'txnName' cannot be '': it is a name of the job's own"),
        (
            {"txnName": "a", "txnVersion": "-1"},
            "option 'txnVersion' cannot be '-1': it is a whole number from 0 to",
        ),
        ({"txnName": "a", "txnVersion": str(TXN_VERSION_MAX + 1)}, "option 'txnVersion' cannot be "),
        ({"txnName": "a", "txnVersion": "²"}, "option 'txnVersion' cannot be '²'"),
        ({"changeTypeColumn": ""}, "option 'changeTypeColumn' cannot be '': it is the name of a column"),
        ({"batchBytes": "0"}, "option 'batchBytes' cannot be '0': it is a number of bytes from 1 to 1g"),
        ({"batchBytes": "2g"}, "option 'batchBytes' cannot be '2g'"),
    ],
)
def test_what_is_refused(options: dict[str, str], expected: str) -> None:
    """A wrong option is one line that says what to do, and no value that may be a secret."""
    error = refused(options)
    assert str(error).startswith(expected)
    assert "secret" not in str(error)


@pytest.mark.parametrize("name", ["txnName", "txnVersion"])
def test_a_stream_names_its_transactions_itself(name: str) -> None:
    """A query's own id and batches name its transactions, so options that would are refused."""
    assert f"option {name!r} is one of df.write" in str(refused({name: "1"}, streaming=True))


def test_required() -> None:
    """Without an endpoint or a table the message says what is missing."""
    with pytest.raises(SourceOptionError, match="option 'table' is missing"):
        WriteOptions.parse({"endpoint": "127.0.0.1:1", "txnName": "a", "txnVersion": "1"}, streaming=False)
