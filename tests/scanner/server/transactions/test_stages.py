"""Which stages there are, against a list of all; and that one more costs no more where there are many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scanner.server.transactions.stages import Attempt, Stages
from scanner.storage.transactions import StageKey, StoredStage
from tests.support.python_calls import counted_calls

ATTEMPT = Attempt(0, 0)
KEYS = st.builds(
    StageKey,
    name=st.just("load"),
    version=st.integers(0, 1),
    part=st.integers(0, 1),
    attempt=st.integers(0, 1),
    sequence=st.integers(1, 5),
    staged_ms=st.just(0),
    session=st.sampled_from([bytes([each]) * 16 for each in range(4)]),
)
STAGES = st.lists(st.builds(StoredStage, KEYS, st.integers(1, 9)), unique_by=lambda each: each.key)


@given(STAGES, st.data())
def test_they_are_those_that_came_and_have_not_gone(came: list[StoredStage], data: st.DataObject) -> None:
    """By version and attempt, in the order in which they are applied, also where one was sent twice."""
    resized: list[int] = []
    stages = Stages(resized.append)
    for stage in came:
        stages.add(stage)
    gone = data.draw(st.lists(st.sampled_from(came)) if came else st.just([]))
    stages.remove([stage.key for stage in gone])
    left = [stage for stage in came if stage not in gone]
    assert sorted(stages) == sorted(left)
    assert stages.versions == sorted({stage.key.version for stage in left})
    assert stages.size == sum(resized) == sum(stage.size for stage in left)
    for version, part, attempt in {stage.key[1:4] for stage in came}:
        of_attempt = sorted(
            (stage for stage in left if stage.key[1:4] == (version, part, attempt)),
            key=lambda each: each.key[4:],
        )
        at = (version, Attempt(part, attempt))
        assert stages.of_attempt(*at) == of_attempt
        assert stages.last_sequence(*at) == max((stage.key.sequence for stage in of_attempt), default=0)
        for session in {stage.key.session for stage in came}:
            sent = [stage for stage in of_attempt if stage.key.session == session]
            assert (stages.find(*at, session) in sent) if sent else (stages.find(*at, session) is None)


def test_one_more_looks_at_few_of_many() -> None:
    """Else thousands of stages of one attempt, as a long task makes them, cost the square of their number."""
    stages = Stages(lambda _: None)

    def stage_next(sequence: int) -> None:
        session = sequence.to_bytes(16, "big")
        assert stages.last_sequence(1, ATTEMPT) == sequence - 1
        assert stages.find(1, ATTEMPT, session) is None
        stages.add(StoredStage(StageKey("load", 1, *ATTEMPT, sequence, 0, session), 1))

    for sequence in range(1, 1025):
        stage_next(sequence)
    assert counted_calls(lambda: stage_next(1025)) < 40
