"""What the credit bench calls good."""

from bench.questions.credit import ROWS, STOCK, WEIR, WINDOW_ONLY, Measured, bars

ROW_BYTES = 1_000


def measured(
    client: str, *, server: int = 0, at_client: int = 0, ahead: int = 0, digest: int = 1
) -> Measured:
    """One scan."""
    return Measured(
        path="direct",
        client=client,
        rows=ROWS,
        digest=digest,
        overrun_server_bytes=server,
        overrun_client_bytes=at_client,
        ahead_bytes=ahead,
    )


def failed(*scans: Measured) -> list[str]:
    """Names of the bars that these scans miss."""
    return [bar.name.partition(":")[0] for bar in bars(list(scans), ROW_BYTES) if not bar.ok]


def test_a_rows_message_past_the_credit_is_good_and_an_octet_more_is_not() -> None:
    """Each end is judged by itself; window-only mode has no credit to be past."""
    assert failed(measured(WEIR, server=1_000, at_client=1_000), measured(WINDOW_ONLY, ahead=10**8)) == []
    assert failed(measured(STOCK, server=1_001)) == ["bytes past the credit at the server"]
    assert failed(measured(STOCK, at_client=1_001)) == ["bytes past the credit at the client"]
    assert failed(measured(WEIR, ahead=10**6)) == ["bytes ahead of a stalled reader"]


def test_all_scans_end_alike() -> None:
    """Two digests are one too many."""
    assert failed(measured(WEIR), measured(STOCK, digest=2)) == ["different outcomes"]
