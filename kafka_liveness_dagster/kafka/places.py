"""Whose place in its group does a new member take? That of a run that died, if there is one; else one of its own.

A dynamic member that is killed keeps its partitions from its successor until its session has timed out. By the classic
protocol a member with a ``group.instance.id`` (KIP-345) is replaced at once by the next one of that name, which also
fences it if it still lives; so each run of Dagster's has such a name of its own, and a run that finds one of a run for
which nobody works any more goes on under it. It leaves as dynamic members do.

Under KIP-848 the broker refuses the name until that session is over (``UNRELEASED_INSTANCE_ID``), and members that
leave keep theirs: they are dynamic.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import uuid4

from kafka_liveness_dagster.core.errors import first_line
from kafka_liveness_dagster.core.run_marks import place_of, run_mark, run_of_place

if TYPE_CHECKING:
    from collections.abc import Collection

    from kafka_liveness_dagster.core.offsets import TopicPartition
    from kafka_liveness_dagster.core.timeouts import Timeouts
    from kafka_liveness_dagster.kafka.admin import Cluster
    from kafka_liveness_dagster.kafka.config import LiveSettings
    from kafka_liveness_dagster.kafka.link import RunLink

log = logging.getLogger("kafka_liveness_dagster")


def place(
    cluster: Cluster, live: LiveSettings, timeouts: Timeouts, link: RunLink, partitions: Collection[TopicPartition]
) -> str | None:
    """The ``group.instance.id`` for one membership; None for a dynamic member, or one that has a name of the user's.

    Args:
        cluster: where the group is.
        live: which group, and the user's name.
        timeouts: by which protocol.
        link: knows which runs are gone; a script does not, and nobody could tell that it is.
        partitions: of the topics, now. Where the group has dealt others it must deal again, and who goes on under a
            name that it knows is given what that name had: the others would stand still.
    """
    if link.take_over is None or timeouts.protocol == "consumer" or live.group_instance_id is not None:
        return None
    members = sorted(cluster.members(live.group_id), key=lambda member: -len(member.partitions))
    dealt = {tp for member in members for tp in member.partitions}
    fits = not dealt or dealt == set(partitions)  # none: they are dealt at this moment
    names = [name for member in members if fits and run_of_place(name := member.group_instance_id) and name]
    try:
        taken = link.take_over(live.group_id, names)
    except Exception as error:  # noqa: BLE001 - Dagster's storage is unavailable: the run waits for the session
        log.warning("could not ask Dagster whose places in group %s are free: %s", live.group_id, first_line(error))
        taken = None
    if taken is not None:
        gone = run_mark(run_of_place(taken) or "")
        link.log.info("takes the place of run %s, which is gone: its session is not waited for", gone)
    return taken or place_of(link.run_id, uuid4().hex[:8])
