"""Keep the Dagster instance of a sensor from one tick to the next.

Dagster opens an instance for each tick. On SQLite that reads Alembic's scripts for each of its databases:
more than half of a tick's processor time. Dagster's webserver and its daemon keep theirs, too.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.definitions.sensor_definition import SensorExecutionData
    from dagster._core.instance.ref import InstanceRef

_kept: list[tuple[InstanceRef, dg.DagsterInstance]] = []
_lock = threading.Lock()


class KeptInstanceSensor(dg.SensorDefinition):
    """A sensor whose ticks in one process share the instance, as long as its settings are the same."""

    def evaluate_tick(self, context: dg.SensorEvaluationContext) -> SensorExecutionData:
        """Evaluate one tick with the kept instance.

        Caller: Dagster's code server, in a thread for each tick. Affects: the context, which would open an
        instance of its own and close it after the tick.
        """
        reference = context.instance_ref
        if reference is not None and context._instance is None:  # noqa: SLF001 - there is no public way
            context._instance = _instance_of(reference)  # noqa: SLF001
        return super().evaluate_tick(context)


def _instance_of(reference: InstanceRef) -> dg.DagsterInstance:
    with _lock:
        for known, instance in _kept:
            if known == reference:
                return instance
        # Other ticks may still use the instance of former settings, so it is not disposed of
        _kept[:] = [(reference, dg.DagsterInstance.from_ref(reference))]
        return _kept[0][1]
