"""What a probe is told of a group, by Kafka's word alone."""

from __future__ import annotations

import pytest

from kafka_liveness_dagster.core.commit_metadata import LiveCommitMetadata, OwnerState
from kafka_liveness_dagster.core.health import Severity, health_probe
from kafka_liveness_dagster.core.offsets import Span, TopicPartition
from kafka_liveness_dagster.core.partition_snapshot import PartitionSnapshot

P0 = TopicPartition("orders", 0)
FINE, WARNING, ERROR = Severity.FINE, Severity.WARNING, Severity.ERROR


def log(end, *owed, start=0, mark=OwnerState.RUNNING):
    return PartitionSnapshot(
        P0, 70, LiveCommitMetadata(mark, "0badcafe"), log_end=end, outstanding=owed, log_start=start
    )


@pytest.mark.parametrize(
    ("seen", "members", "bounds", "wrong"),
    [
        pytest.param(log(70), 0, {}, {}, id="nobody, and nothing waits"),
        pytest.param(log(120), 1, {}, {}, id="somebody reads it"),
        pytest.param(log(120), 0, {}, {"50 offsets of lag, and no member": ERROR}, id="nobody reads it"),
        pytest.param(
            log(70, Span(0, 9)), 0, {}, {"9 offsets pending, and no member": ERROR}, id="nobody backfills it"
        ),
        pytest.param(
            log(120, Span(0, 9)),
            0,
            {},
            {"50 offsets of lag and 9 offsets pending, and no member": ERROR},
            id="nobody does either",
        ),
        pytest.param(
            log(120, Span(0, 9)), 0, {"allow_no_member": True}, {}, id="nobody has to, for the caller"
        ),
        pytest.param(
            log(120, Span(0, 9), mark=OwnerState.PAUSED), 0, {}, {}, id="nobody is to, of a held partition"
        ),
        pytest.param(log(120, mark=OwnerState.PAUSED), 0, {}, {}, id="nobody is to read it"),
        pytest.param(log(120), 1, {"max_lag": 50}, {}, id="as much as may wait"),
        pytest.param(log(120), 1, {"max_lag": 49}, {"above max_lag=49": WARNING}, id="more than may wait"),
        pytest.param(log(70, Span(0, 9)), 1, {"max_pending": 9}, {}, id="as much as may be owed"),
        pytest.param(
            log(70, Span(0, 9)),
            1,
            {"max_pending": 8},
            {"9 offsets are pending": WARNING},
            id="more than that",
        ),
        pytest.param(log(70, Span(0, 9), start=5), 1, {}, {"expired": ERROR}, id="owed, and deleted"),
    ],
)
def test_only_what_is_wrong_is_told_as_wrong(seen, members, bounds, wrong):
    """Each verdict by its gravity; all others are fine."""
    found = {verdict.message: verdict.severity for verdict in health_probe([seen], members, **bounds)}
    assert len(found) == 4
    for words, gravity in wrong.items():
        assert [one for sentence, one in found.items() if words in sentence] == [gravity]
    assert list(found.values()).count(FINE) == 4 - len(wrong)
