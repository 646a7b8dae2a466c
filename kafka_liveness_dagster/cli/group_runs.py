"""Find the runs of a group for ``kafka-liveness status``: in Dagster if it can be read, else in Kafka alone.

Uses the sensor's own observation of a group, and writes nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka_liveness_dagster.core.departures import RunFate, departures
from kafka_liveness_dagster.core.errors import KafkaLivenessError, summary_line
from kafka_liveness_dagster.core.group_verdict import Departure, GroupRuns, LiveRun
from kafka_liveness_dagster.core.process_status import ProcessStatus, process_status
from kafka_liveness_dagster.core.run_ids import short_run_id
from kafka_liveness_dagster.kafka.errors import BrokerUnreachableError, KafkaRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import dagster as dg

    from kafka_liveness_dagster.core.events import MemberLeft
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.group_status import GroupStatus
    from kafka_liveness_dagster.sensor.observation import GroupObservation


def find_runs(cluster: Cluster, found: GroupStatus) -> tuple[GroupRuns, bool]:
    """Return the runs of a group, and whether they are of the same moment as its status.

    The sensor's observation reads Kafka again. If a run joined or committed in between, the departures do not
    fit the owners in the status. Without ``DAGSTER_HOME``, or if Dagster cannot be read, only Kafka's members
    and commits are known.

    Raises:
        BrokerUnreachableError: no broker responds.
        KafkaRefusedError: the broker refuses the request.
    """
    if not os.environ.get("DAGSTER_HOME"):
        return _runs_by_kafka(found), True
    try:
        return _runs_by_dagster(cluster, found)
    except (BrokerUnreachableError, KafkaRefusedError):
        raise
    except KafkaLivenessError as error:
        return _runs_by_kafka(found, str(error)), True
    except Exception as error:  # noqa: BLE001 - an error of Dagster, which the status shows; Kafka is read
        return _runs_by_kafka(found, summary_line(error)), True


def _runs_by_kafka(found: GroupStatus, unread_reason: str = "") -> GroupRuns:
    members = {run: False for member in found.members for run in member.runs}
    left = departures([p.snapshot for p in found.partitions], members, runs={})
    return GroupRuns(tuple(map(Departure, _not_in_good_order(left))), unread_reason=unread_reason)


def _runs_by_dagster(cluster: Cluster, found: GroupStatus) -> tuple[GroupRuns, bool]:
    from kafka_liveness_dagster.cli.crash_lag_assets import open_instance  # noqa: PLC0415  Dagster takes a second
    from kafka_liveness_dagster.runs.storage import storage_errors  # noqa: PLC0415
    from kafka_liveness_dagster.sensor.observation import GroupObservation  # noqa: PLC0415

    topics = sorted({p.snapshot.topic_partition.topic for p in found.partitions})
    with storage_errors("the status reads them only"):
        instance = open_instance()
        if instance is None:
            return _runs_by_kafka(found), True
        with instance:
            observed = GroupObservation.read(cluster, instance, found.group_id, topics)
            crash_lag = _crash_lag(instance, found.group_id, observed)
    seen = observed.snapshot
    left = _not_in_good_order(seen.owners_without_member)
    gone = {one.run for one in left}
    owners = {p.snapshot.topic_partition: p.snapshot.live_metadata for p in found.partitions}
    is_same_moment = {member.member_id for member in seen.members} == {
        one.member.member_id for one in found.members
    } and all(p.live_metadata == owners[p.topic_partition] for p in seen.partitions)
    runs = GroupRuns(
        tuple(Departure(one, _seconds_since_end(observed, one.run)) for one in left),
        live=tuple(_live_run(run) for run in observed.live_in_progress),
        starting=tuple(
            run
            for run, known in seen.runs.items()
            if known.fate is RunFate.IN_PROGRESS
            and known.is_working
            and not known.has_ended
            and run not in seen.member_run_ids
            and run not in gone
        ),
        catching_up=tuple(run for run, known in seen.catch_up.items() if known.is_working),
        is_dagster_read=True,
        **crash_lag,
    )
    return runs, is_same_moment


def _crash_lag(instance: dg.DagsterInstance, group_id: str, observed: GroupObservation) -> dict[str, Any]:
    """Return the fields of ``GroupRuns`` on the crash lag asset and its partitions; none if unknown."""
    from kafka_liveness_dagster.cli.backfill_command import materialize_command  # noqa: PLC0415  Dagster takes a second
    from kafka_liveness_dagster.cli.crash_lag_assets import crash_lag_asset  # noqa: PLC0415  Dagster takes a second
    from kafka_liveness_dagster.cli.pending_reasons import find_pending_reasons  # noqa: PLC0415
    from kafka_liveness_dagster.core.partition_keys import is_key  # noqa: PLC0415

    if not observed.pending:
        return {}
    try:
        asset = crash_lag_asset(instance, group_id, None, outcome="")
    except KafkaLivenessError:  # another instance has the asset, or several assets fit
        return {}
    keys = instance.get_dynamic_partitions(asset.to_python_identifier())
    done = instance.get_materialized_partitions(asset)
    open_keys = [key for key in keys if key not in done and is_key(key)]
    pending = observed.still_pending(open_keys)
    name = asset.to_user_string()
    return {
        "crash_lag_asset": name,
        "partitions_to_backfill": len(pending),
        "pending_reasons": tuple(
            find_pending_reasons(instance, asset, group_id, keys=pending, existing=keys)
        ),
        "backfill_command": materialize_command(Path.cwd(), name, pending, keys),
    }


def _live_run(run: dg.DagsterRun) -> LiveRun:
    from kafka_liveness_dagster.runs import proc  # noqa: PLC0415  Dagster takes a second
    from kafka_liveness_dagster.runs.tags import heartbeat_of  # noqa: PLC0415

    process = heartbeat_of(run).process
    here = proc.this_namespace()
    is_here = (
        process is not None
        and here is not None
        and process_status(process, here, proc.pid_entry(process.pid)) is ProcessStatus.ALIVE
    )
    return LiveRun(short_run_id(run.run_id), run.run_id, process.pid if process and is_here else None)


def _not_in_good_order(left: Sequence[MemberLeft]) -> list[MemberLeft]:
    return [one for one in left if not one.reason.in_good_order]


def _seconds_since_end(observed: GroupObservation, run: str) -> float | None:
    ends = (record.end_time for record in observed.records if short_run_id(record.dagster_run.run_id) == run)
    ended = next(ends, None)
    return None if ended is None else max(0.0, time.time() - ended)
