"""What the bench of credit that sizes itself calls good."""

from dataclasses import replace

from bench.questions.credit_sizes import AUTO, MIB, ROUND_TRIPS_MS, Scanned, bars

FIXED = Scanned(credit="32 MiB", round_trip_ms=0, lags=False, mb_per_s=100.0, held_bytes_max=32 * MIB)


def measured(rate: float = 80.0, held: int = 8 * MIB) -> list[Scanned]:
    """A fixed credit, and the one that sizes itself, over each line."""
    one = [replace(FIXED, round_trip_ms=each) for each in ROUND_TRIPS_MS]
    sized = [replace(each, credit=AUTO, mb_per_s=rate) for each in one]
    return one + sized + [replace(each, lags=True, held_bytes_max=held) for each in sized]


def test_about_the_rate_of_the_best_and_little_held_is_good() -> None:
    """Each line is judged by itself, its rate and what waits for a consumer that lags."""
    assert all(bar.ok for bar in bars(measured()))
    assert sum(not bar.ok for bar in bars(measured(rate=79.0))) == len(ROUND_TRIPS_MS)
    assert sum(not bar.ok for bar in bars(measured(held=9 * MIB))) == len(ROUND_TRIPS_MS)
