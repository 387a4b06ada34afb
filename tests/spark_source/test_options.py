"""Options are parsed once, completely, and refused in one line that says what is allowed."""

import dataclasses
import datetime
import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_source import SourceOptionError, WeirDataSource
from spark_source.options import (
    AS_OF_MODES,
    CONTRADICTIONS,
    LEASE_TTL_S_MAX,
    MODES,
    OPTION_NAMES,
    PAGE_DEPTH_MAX,
    SIZE_BYTES_MAX,
    SPLITS_MAX,
    SourceOptions,
)

REQUIRED = {"endpoint": "127.0.0.1:9123", "table": "orders"}


def refused(options: dict[str, str]) -> SourceOptionError:
    """The error that parsing these options, together with the required ones, ends in."""
    with pytest.raises(SourceOptionError) as caught:
        SourceOptions.parse(REQUIRED | options)
    return caught.value


REFUSED: dict[str, tuple[str, list[str]]] = {
    "endpoint": (
        "HOST:PORT",
        ["", "localhost", "localhost:", ":9123", "localhost:0", "localhost:65536", "localhost:99999999", "a b:1",
         "http://localhost:9123", "localhost:9123/", "::1:9123", "[::1]", "localhost:-1", "localhost:٣"],
    ),
    "table": ("the name of the table", [" "]),
    # What is neither an offset nor pairs of bucket and offset gets an example of both.
    "asOf": (
        "such as 0:1200,1:1187", ["", "-1", "1.5", "now", "1,2", "0:", ":5", "0:1,", "0:1,1", "0:-1", "\u0663"]
    ),
    "asOf twice": ("more than once", ["0:1,0:2"]),
    # What is no instant, or one of nobody knows which zone, gets two.
    "asOfTimestamp": (
        "such as 2013-07-01T12:30:00Z or 2013-07-01T14:30:00+02:00",
        ["", "now", "1372681800", "2013-07-01", "2013-07-01T12:30:00", "2013-13-01T12:30Z",
         "2013-07-01T12:30:00.0000001Z", "0001-01-01T00:00:00+05:00"],
    ),
    "leaseId": ("the id of a lease that you hold", ["", "a b", "a/b", "x" * 101, "ä"]),
    "leaseTtl": (
        f"from 0 to {LEASE_TTL_S_MAX}", ["", "-1", "1.0", "10m", "²", str(LEASE_TTL_S_MAX + 1), "9" * 30]
    ),
    "splits": (f"from 1 to {SPLITS_MAX}", ["", "0", "-1", "1.5", "²", str(SPLITS_MAX + 1), "9" * 5000]),
    "pageDepth": (
        f"from 0 to {PAGE_DEPTH_MAX}", ["", "-1", "1.0", "x", "²", str(PAGE_DEPTH_MAX + 1), "9" * 5000]
    ),
    # An empty name is not dropped.
    "columns as a list": (
        "this was a list; give column names", ["['a']", "['a', 'b']", '["a"]', "('a', 'b')", "('a',)"]
    ),
    "columns": ("leave it out to read all of them", ["", " ", ",", "a,", ",a", "a,,b"]),
    "columns twice": ("a is there more than once", ["a,b,a"]),
    "statistics": ("it is true or false", ["", "1", "yes", "on"]),
    # Empty, they would read everything.
    **{name: (f"option {name!r} cannot be '", ["", " "]) for name in ("where", "keyFrom", "keyTo")},
    # Zero, fractions, other units and sizes past the bound.
    **{
        name: (
            "a number of bytes from 1 to 1g",
            ["", "0", "0m", "-1", "1.5m", "1mb", "m", "1 m", "2g", "1e6", "٣", "1_000"],
        )
        for name in ("creditBytes", "pageBytes", "targetSplitBytes")
    },
}  # fmt: skip
"""By option: what the message says, and the values that it is said of."""


@pytest.mark.parametrize(
    ("option", "said", "text"),
    [(name.split()[0], said, text) for name, (said, texts) in REFUSED.items() for text in texts],
)
def test_refused(option: str, said: str, text: str) -> None:
    """What an option cannot be is refused with what it can be."""
    assert said in str(refused({option: text}))


def test_defaults() -> None:
    """The endpoint and the table are enough; everything else has a default."""
    assert SourceOptions.parse(REQUIRED) == SourceOptions(
        endpoint="127.0.0.1:9123",
        table="orders",
        mode="push",
        as_of=None,
        as_of_time=None,
        lease_id=None,
        lease_ttl_s=600,
        splits=None,
        split_bytes=None,
        columns=None,
        where=None,
        key_from=None,
        key_to=None,
        credit_bytes=None,
        page_bytes=None,
        page_depth=None,
        statistics=False,
        tls_ca=None,
        tls_cert=None,
        tls_key=None,
        token_file=None,
    )


SAMPLES: dict[str, tuple[str, str, Any]] = {
    "endpoint": ("[::1]:80", "endpoint", "[::1]:80"),
    "table": (" orders ", "table", "orders"),
    "mode": ("ASOF", "mode", "asof"),
    "asOf": ("1:20, 0 : 10", "as_of", ((0, 10), (1, 20))),
    "asOfTimestamp": (
        "2013-07-01T14:30:00.5+02:00",
        "as_of_time",
        datetime.datetime(2013, 7, 1, 12, 30, 0, 500_000, datetime.UTC),
    ),
    "leaseId": ("night:42", "lease_id", "night:42"),
    "leaseTtl": ("60", "lease_ttl_s", 60),
    "splits": ("8", "splits", 8),
    "targetSplitBytes": ("64m", "split_bytes", 64 << 20),
    "columns": ("b, a ,c", "columns", ("b", "a", "c")),
    "where": (" a > 1 ", "where", "a > 1"),
    "keyFrom": ("[1, 2]", "key_from", "[1, 2]"),
    "keyTo": ("5", "key_to", "5"),
    "creditBytes": ("8m", "credit_bytes", 8 << 20),
    "pageBytes": ("512K", "page_bytes", 512 << 10),
    "pageDepth": ("4", "page_depth", 4),
    "statistics": ("true", "statistics", True),
    "tlsCa": ("/ca.pem", "tls_ca", "/ca.pem"),
    "tlsCert": ("/client.pem", "tls_cert", "/client.pem"),
    "tlsKey": ("/client.key", "tls_key", "/client.key"),
    "tokenFile": (" /token ", "token_file", "/token"),
}
"""Of each option a value, the field where it goes, and what it is there."""


def test_samples() -> None:
    """There is one for each option and each field."""
    assert tuple(SAMPLES) == OPTION_NAMES
    assert {field for _, field, _ in SAMPLES.values()} == {
        field.name for field in dataclasses.fields(SourceOptions)
    }


@pytest.mark.parametrize("name", OPTION_NAMES)
def test_every_option(name: str) -> None:
    """Every option arrives in its field, parsed, and changes no other."""
    text, field, value = SAMPLES[name]
    expected = dataclasses.replace(SourceOptions.parse(REQUIRED), **{field: value})
    assert SourceOptions.parse(REQUIRED | {name: text}) == expected


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(OPTION_NAMES, 2)))
def test_pairs(first: str, second: str) -> None:
    """Two options go together, or are refused in one line that names both; their order makes no difference."""
    options = REQUIRED | {name: SAMPLES[name][0] for name in (first, second)}
    options = {name: options[name] for name in sorted(options, key=(first, second, *REQUIRED).index)}
    reason = CONTRADICTIONS.get((first, second)) or CONTRADICTIONS.get((second, first))
    if reason is None:
        parsed = SourceOptions.parse(options)
        for name in (first, second):
            _, field, value = SAMPLES[name]
            assert getattr(parsed, field) == value
        return
    with pytest.raises(SourceOptionError) as caught:
        SourceOptions.parse(options)
    problem = str(caught.value)
    assert repr(first) in problem
    assert repr(second) in problem
    assert problem.endswith(f"{reason}; leave one of them out")
    assert len(problem.splitlines()) == 1


OF_ONE_STATE = ("asOf", "asOfTimestamp", "leaseId", "splits", "targetSplitBytes")


@pytest.mark.parametrize("name", OF_ONE_STATE)
@pytest.mark.parametrize("mode", MODES)
def test_what_needs_a_mode_that_reads_the_past(name: str, mode: str) -> None:
    """A mode that would read other states than the option says refuses it, instead of leaving it without effect."""
    options = {name: SAMPLES[name][0], "mode": mode}
    if mode in AS_OF_MODES:
        assert SourceOptions.parse(REQUIRED | options).reads_one_state
    else:
        problem = str(refused(options))
        assert problem.startswith(
            f"option {name!r} cannot be {SAMPLES[name][0]!r}: in mode {mode} each task reads"
        )
        assert problem.endswith("use mode push or asof")


@pytest.mark.parametrize("name", ["splits", "targetSplitBytes"])
def test_parts_of_a_bucket_are_of_one_state(name: str) -> None:
    """Without a lease a bucket is cut only where a state is named: its parts would be of different ones."""
    options = {name: SAMPLES[name][0], "leaseTtl": "0"}
    assert "leave leaseTtl out" in str(refused(options))
    assert SourceOptions.parse(REQUIRED | options | {"asOfTimestamp": "2013-07-01T12:30:00Z"}).reads_one_state


@pytest.mark.parametrize(
    "text",
    ["2013-07-01T12:30Z", "2013-07-01 12:30:00Z", "2013-07-01T12:30:00.000000Z", "2013-07-01T05:30-07:00"],
)
def test_instants(text: str) -> None:
    """An instant is told in the same words as a key's: with its offset from UTC."""
    expected = datetime.datetime(2013, 7, 1, 12, 30, tzinfo=datetime.UTC)
    assert SourceOptions.parse(REQUIRED | {"asOfTimestamp": text}).as_of_time == expected


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_names_have_no_case(spell: object) -> None:
    """Names are matched without case, because Spark lowers them, and users write them as they like."""
    assert callable(spell)
    options = {
        spell(name): value for name, value in (REQUIRED | {"creditBytes": "1", "pageDepth": "0"}).items()
    }
    parsed = SourceOptions.parse(options)
    assert (parsed.credit_bytes, parsed.page_depth) == (1, 0)
    assert SourceOptions.parse(CaseInsensitiveDict(options)) == parsed


@pytest.mark.parametrize("missing", ["endpoint", "table"])
def test_required_options(missing: str) -> None:
    """A missing endpoint or table is named, with an example of what it should be."""
    with pytest.raises(SourceOptionError, match=f"option '{missing}' is missing: .+") as caught:
        SourceOptions.parse({name: value for name, value in REQUIRED.items() if name != missing})
    assert (caught.value.option, caught.value.value) == (missing, None)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tabel", "table"),
        ("creditByte", "creditBytes"),
        ("credit_bytes", "creditBytes"),
        ("pagedepht", "pageDepth"),
    ],
)
def test_unknown_option_with_a_neighbour(name: str, nearest: str) -> None:
    """A misspelt option is answered with the one that was probably meant, and with the list of all."""
    error = refused({name: "1"})
    assert error.option == name
    assert f"unknown option {name!r}; did you mean {nearest!r}?" in str(error)
    assert f"(the options are {', '.join(OPTION_NAMES)}; of a write also txnName, " in str(error)


def test_unknown_option_without_a_neighbour() -> None:
    """An option like no other is answered with the list alone."""
    assert str(refused({"xyzzy": "1"})).startswith("unknown option 'xyzzy' (the options are endpoint, table,")


def test_path_is_explained() -> None:
    """`load("orders")`, and `save("orders")`, set an option that nobody wrote: the message says what to do."""
    told = str(refused({"path": "orders"}))
    assert "call load() or save() without arguments and name it with option 'table'" in told


@pytest.mark.parametrize(
    "endpoint", ["localhost:1", "10.0.0.1:65535", "[::1]:9123", "a-b.example.org:9123", "[fe80::1%eth0]:9123"]
)
def test_endpoints_accepted(endpoint: str) -> None:
    """Names, IPv4 addresses and bracketed IPv6 addresses are hosts."""
    assert SourceOptions.parse(REQUIRED | {"endpoint": endpoint}).endpoint == endpoint


@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str) -> None:
    """Each mode is accepted by its name."""
    assert SourceOptions.parse(REQUIRED | {"mode": mode}).mode == mode


def test_unknown_mode() -> None:
    """An unknown mode is answered with those there are."""
    error = refused({"mode": "pull"})
    assert str(error) == "option 'mode' cannot be 'pull': it is one of push, session, token, cursor, asof"
    assert (error.option, error.value) == ("mode", "pull")


@pytest.mark.parametrize(
    ("text", "offsets"),
    [("0", 0), (" 1200 ", 1200), ("0:0", ((0, 0),)), ("2:5,0:7,1:9", ((0, 7), (1, 9), (2, 5)))],
)
def test_as_of(text: str, offsets: object) -> None:
    """One offset for all buckets, or one for each, in any order."""
    assert SourceOptions.parse(REQUIRED | {"asOf": text}).as_of == offsets


@pytest.mark.parametrize("text", [str(2**64), "9" * 20, f"0:1,1:{2**64}"])
def test_as_of_is_an_offset_that_can_be_sent(text: str) -> None:
    """What is past every offset is refused here, and not by protobuf in a task."""
    assert SourceOptions.parse(REQUIRED | {"asOf": str(2**64 - 1)}).as_of == 2**64 - 1
    assert "2^64 - 1 at most" in str(refused({"asOf": text}))


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1024", 1024), ("1k", 1024), ("1K", 1024), ("3m", 3 << 20), ("1g", 1 << 30), ("007", 7)],
)
def test_sizes(text: str, size: int) -> None:
    """A size is a number of bytes, KiB, MiB or GiB."""
    assert SourceOptions.parse(REQUIRED | {"creditBytes": text}).credit_bytes == size


@given(size=st.integers(min_value=1, max_value=SIZE_BYTES_MAX))
def test_plain_sizes(size: int) -> None:
    """Every size within the bounds reads as itself."""
    assert SourceOptions.parse(REQUIRED | {"creditBytes": str(size)}).credit_bytes == size


@pytest.mark.parametrize("mode", MODES)
def test_who_takes_a_lease(mode: str) -> None:
    """The modes that can read a state of the past do, unless the user names one, or wants no lease."""
    options = REQUIRED | {"mode": mode}
    assert SourceOptions.parse(options).takes_lease == (mode in AS_OF_MODES)
    assert not SourceOptions.parse(options | {"leaseTtl": "0"}).takes_lease
    if mode in AS_OF_MODES:
        assert not SourceOptions.parse(options | {"asOf": "7"}).takes_lease
        assert not SourceOptions.parse(options | {"leaseId": "mine"}).takes_lease
        assert SourceOptions.parse(options | {"asOfTimestamp": "2013-07-01T12:30Z"}).takes_lease


@pytest.mark.parametrize("value", ["true", "false"])
def test_pushed_filters_are_withdrawn(value: str) -> None:
    """The option that gave wrong rows is refused with the reason, and with what to use."""
    problem = str(refused({"pushFilters": value}))
    assert "option 'pushFilters' is withdrawn: Spark keeps one reader for each load()" in problem
    assert "option 'where'" in problem


@pytest.mark.parametrize("options", [{"option.table": "orders", "owner": "me"}, {"owner": "me"}, {}], ids=str)
def test_options_of_a_catalog_table_are_explained(options: dict[str, str]) -> None:
    """Whatever Spark makes of the options of `CREATE TABLE ... USING weir`, the message says what to use instead."""
    with pytest.raises(SourceOptionError, match=r"CREATE TABLE ... USING weir does not work.*TEMPORARY VIEW"):
        SourceOptions.parse(options)


@given(options=st.dictionaries(st.sampled_from(OPTION_NAMES) | st.text(), st.text()))
def test_any_options(options: dict[str, str]) -> None:
    """Whatever is given, parsing returns options or raises SourceOptionError with one line."""
    try:
        outcome = SourceOptions.parse(options).endpoint
    except SourceOptionError as error:
        outcome = str(error)
    assert len(outcome.splitlines()) == 1


def test_options_are_frozen() -> None:
    """Parsed options do not change, and survive a pickle as themselves."""
    parsed = SourceOptions.parse(REQUIRED)
    with pytest.raises(dataclasses.FrozenInstanceError):
        parsed.mode = "session"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(parsed)) == parsed


def test_data_source_parses_without_a_network() -> None:
    """Making the data source refuses bad options at once, and connects to nobody for good ones."""
    source = WeirDataSource(dict(REQUIRED))
    assert source.name() == "weir"
    with pytest.raises(SourceOptionError, match="unknown option 'tabel'"):
        WeirDataSource(REQUIRED | {"tabel": "orders"})


@pytest.mark.parametrize("name", ["tokenFile", "tlsKey"])
@pytest.mark.parametrize("value", ["-----BEGIN PRIVATE KEY----- secret", "weir_secret\nmore", ""])
def test_secret_in_place_of_its_path(name: str, value: str) -> None:
    """What is in a file, given where its path belongs, is refused without being repeated."""
    with pytest.raises(SourceOptionError) as caught:
        SourceOptions.parse(REQUIRED | {name: value})
    assert "path of a" in str(caught.value)
    assert "secret" not in repr(caught.value)


def test_token_is_no_option() -> None:
    """A token given as an option is refused without being repeated, and the message says where it belongs."""
    with pytest.raises(SourceOptionError, match="option 'tokenFile' names") as caught:
        SourceOptions.parse(REQUIRED | {"token": "weir_secret"})
    assert "secret" not in repr(caught.value)


def test_a_password_in_an_endpoint_is_not_shown() -> None:
    """Messages go into logs."""
    error = refused({**REQUIRED, "endpoint": "http://user:hush@host:1"})
    assert str(error).startswith("option 'endpoint' cannot be '...@host:1': it is HOST:PORT")
    assert "hush" not in repr(error)
