"""Leave out of a sensor's tick what Dagster does for each: open an instance, and create the resources.

On SQLite an instance reads Alembic's scripts for each of its databases: more than half of a tick's processor
time. Dagster's webserver and its daemon keep theirs, too. The resources of this package take half of the time
of a tick that finds an idle group.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import dagster as dg
from dagster._core.definitions.sensor_definition import SensorExecutionData

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster._core.instance.ref import InstanceRef

_kept: list[tuple[InstanceRef, dg.DagsterInstance]] = []
_lock = threading.Lock()


class KeptInstanceSensor(dg.SensorDefinition):
    """A sensor whose ticks in one process share an instance while the instance's settings are the same.

    Args:
        skip_message: returns why a tick starts nothing, if it needs no resource to know that; else None.
        settings: those of Dagster's sensor.
    """

    def __init__(
        self,
        *,
        skip_message: Callable[[dg.SensorEvaluationContext], str | None] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._skip_message = skip_message

    def evaluate_tick(self, context: dg.SensorEvaluationContext) -> SensorExecutionData:
        """Evaluate one tick with the kept instance.

        Caller: Dagster's code server, in a thread for each tick. Affects: the context, which would open an
        instance of its own and close it after the tick.
        """
        reference = context.instance_ref
        if reference is not None and context._instance is None:  # noqa: SLF001 - there is no public way
            context._instance = _instance_of(reference)  # noqa: SLF001
        if self._skip_message is not None and (message := self._skip_message(context)) is not None:
            return SensorExecutionData([], message, context.cursor, [], dynamic_partitions_requests=[])
        return super().evaluate_tick(context)


def _instance_of(reference: InstanceRef) -> dg.DagsterInstance:
    with _lock:
        for known, instance in _kept:
            if known == reference:
                return instance
        # Other ticks may still use the instance of former settings, so it is not disposed of
        _kept[:] = [(reference, dg.DagsterInstance.from_ref(reference))]
        return _kept[0][1]
