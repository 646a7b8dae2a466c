"""Live, fair and crash-proof Kafka consumption for Dagster assets processed by Spark.

The public names are in ``__all__``. All other modules are internal, and change without notice.

A name is loaded at its first use. The import of the package imports neither dagster, pyspark nor
confluent_kafka, so a machine that only shows the UI needs neither Java nor a broker. The import does set an
environment variable by which pyspark uses Spark Connect in this process.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafka_liveness_dagster.assets.component import KafkaAssetComponent
    from kafka_liveness_dagster.assets.decorator import kafka_asset
    from kafka_liveness_dagster.assets.definitions import KafkaAsset
    from kafka_liveness_dagster.assets.shared_sensor import build_shared_sensor
    from kafka_liveness_dagster.core.bad_records import BadRecordError
    from kafka_liveness_dagster.core.batch_planning import Batch
    from kafka_liveness_dagster.core.batch_size import SlowRecordError
    from kafka_liveness_dagster.core.commit_metadata import ExternalCommitError
    from kafka_liveness_dagster.core.errors import InvalidSettingError, KafkaLivenessError
    from kafka_liveness_dagster.core.events import (
        CrashLagForgotten,
        CrashLagFound,
        GhostFound,
        GroupDied,
        GroupEmptied,
        GroupEvent,
        LeaveReason,
        MemberJoined,
        MemberLeft,
        RebalanceCompleted,
        RebalanceStarted,
    )
    from kafka_liveness_dagster.core.fencing import FenceReason
    from kafka_liveness_dagster.core.ledger import UnknownLedgerFormatError
    from kafka_liveness_dagster.core.offsets import OffsetRange, TopicPartition
    from kafka_liveness_dagster.core.partition_state import (
        DataExpiredError,
        GroupMismatchError,
        RowsMissingError,
        TableMismatchError,
        TopicRecreatedError,
    )
    from kafka_liveness_dagster.core.resume import NoCommittedOffsetError
    from kafka_liveness_dagster.core.schemas import SchemaUnusableError
    from kafka_liveness_dagster.core.timeouts import MaxRuntimeReachedError
    from kafka_liveness_dagster.embedded.state import (
        JarsError,
        JavaNotFoundError,
        PortTakenError,
        ServiceNotStartedError,
        ServicesDownError,
    )
    from kafka_liveness_dagster.kafka.catch_up.commit_log import NotPendingError
    from kafka_liveness_dagster.kafka.catch_up.consumer import CatchUpConsumer, PausedPartitionError
    from kafka_liveness_dagster.kafka.errors import (
        AccessRefusedError,
        BrokerUnreachableError,
        CommitRefusedError,
        FencedError,
        KafkaRefusedError,
        TopicNotFoundError,
    )
    from kafka_liveness_dagster.kafka.live.consumer import LivenessConsumer
    from kafka_liveness_dagster.kafka.record_reader import BatchInterleavedError
    from kafka_liveness_dagster.kafka.schema_registry import RegistryUnreachableError, SchemaNotFoundError
    from kafka_liveness_dagster.lanes.runs import IncompleteWindowError
    from kafka_liveness_dagster.resources.kafka import KafkaLivenessResource
    from kafka_liveness_dagster.resources.registry import SchemaRegistryResource
    from kafka_liveness_dagster.resources.spark import SparkConnectResource
    from kafka_liveness_dagster.runs.selection import PartitionRequiredError
    from kafka_liveness_dagster.runs.storage import DagsterStorageError
    from kafka_liveness_dagster.sensor.sensor import build_group_sensor
    from kafka_liveness_dagster.settings.asset_arguments import AssetArguments
    from kafka_liveness_dagster.settings.groups import (
        Batching,
        Completeness,
        CrashLag,
        Iceberg,
        Maintenance,
        Membership,
        Offsets,
        ResourceKeys,
        Sensor,
        Sla,
    )
    from kafka_liveness_dagster.spark.decode.json_column import from_json
    from kafka_liveness_dagster.spark.errors import (
        KafkaSourceError,
        RowsOutsideBatchError,
        SparkCancelledError,
        SparkFailedError,
        SparkNotRespondingError,
        SparkUnreachableError,
        StorageError,
        TableSchemaError,
        TableUnreadableError,
        TransformError,
        UnreadableRecordError,
        WriteConflictError,
    )
    from kafka_liveness_dagster.spark.sink import Replacement, Sink, SinkCommit, merge_ledger_texts

__all__ = [
    "AccessRefusedError",
    "AssetArguments",
    "BadRecordError",
    "Batch",
    "BatchInterleavedError",
    "Batching",
    "BrokerUnreachableError",
    "CatchUpConsumer",
    "CommitRefusedError",
    "Completeness",
    "CrashLag",
    "CrashLagForgotten",
    "CrashLagFound",
    "DagsterStorageError",
    "DataExpiredError",
    "ExternalCommitError",
    "FenceReason",
    "FencedError",
    "GhostFound",
    "GroupDied",
    "GroupEmptied",
    "GroupEvent",
    "GroupMismatchError",
    "Iceberg",
    "IncompleteWindowError",
    "InvalidSettingError",
    "JarsError",
    "JavaNotFoundError",
    "KafkaAsset",
    "KafkaAssetComponent",
    "KafkaLivenessError",
    "KafkaLivenessResource",
    "KafkaRefusedError",
    "KafkaSourceError",
    "LeaveReason",
    "LivenessConsumer",
    "Maintenance",
    "MaxRuntimeReachedError",
    "MemberJoined",
    "MemberLeft",
    "Membership",
    "NoCommittedOffsetError",
    "NotPendingError",
    "OffsetRange",
    "Offsets",
    "PartitionRequiredError",
    "PausedPartitionError",
    "PortTakenError",
    "RebalanceCompleted",
    "RebalanceStarted",
    "RegistryUnreachableError",
    "Replacement",
    "ResourceKeys",
    "RowsMissingError",
    "RowsOutsideBatchError",
    "SchemaNotFoundError",
    "SchemaRegistryResource",
    "SchemaUnusableError",
    "Sensor",
    "ServiceNotStartedError",
    "ServicesDownError",
    "Sink",
    "SinkCommit",
    "Sla",
    "SlowRecordError",
    "SparkCancelledError",
    "SparkConnectResource",
    "SparkFailedError",
    "SparkNotRespondingError",
    "SparkUnreachableError",
    "StorageError",
    "TableMismatchError",
    "TableSchemaError",
    "TableUnreadableError",
    "TopicNotFoundError",
    "TopicPartition",
    "TopicRecreatedError",
    "TransformError",
    "UnknownLedgerFormatError",
    "UnreadableRecordError",
    "WriteConflictError",
    "build_group_sensor",
    "build_shared_sensor",
    "from_json",
    "kafka_asset",
    "merge_ledger_texts",
]

_HOMES = {
    name: home
    for home, names in {
        "core.bad_records": "BadRecordError",
        "core.batch_size": "SlowRecordError",
        "core.commit_metadata": "ExternalCommitError",
        "core.errors": "InvalidSettingError KafkaLivenessError",
        "core.events": (
            "CrashLagForgotten CrashLagFound GhostFound GroupDied GroupEmptied GroupEvent LeaveReason "
            "MemberJoined MemberLeft RebalanceCompleted RebalanceStarted"
        ),
        "core.batch_planning": "Batch",
        "core.fencing": "FenceReason",
        "core.ledger": "UnknownLedgerFormatError",
        "core.offsets": "OffsetRange TopicPartition",
        "core.schemas": "SchemaUnusableError",
        "core.resume": "NoCommittedOffsetError",
        "core.timeouts": "MaxRuntimeReachedError",
        "core.partition_state": (
            "DataExpiredError GroupMismatchError RowsMissingError TableMismatchError TopicRecreatedError"
        ),
        "assets.decorator": "kafka_asset",
        "assets.component": "KafkaAssetComponent",
        "assets.definitions": "KafkaAsset",
        "assets.shared_sensor": "build_shared_sensor",
        "embedded.state": (
            "JarsError JavaNotFoundError PortTakenError ServiceNotStartedError ServicesDownError"
        ),
        "kafka.catch_up.consumer": "CatchUpConsumer PausedPartitionError",
        "kafka.live.consumer": "LivenessConsumer",
        "kafka.errors": (
            "AccessRefusedError BrokerUnreachableError CommitRefusedError FencedError KafkaRefusedError "
            "TopicNotFoundError"
        ),
        "kafka.record_reader": "BatchInterleavedError",
        "kafka.schema_registry": "RegistryUnreachableError SchemaNotFoundError",
        "kafka.catch_up.commit_log": "NotPendingError",
        "lanes.runs": "IncompleteWindowError",
        "resources.kafka": "KafkaLivenessResource",
        "resources.registry": "SchemaRegistryResource",
        "resources.spark": "SparkConnectResource",
        "runs.selection": "PartitionRequiredError",
        "runs.storage": "DagsterStorageError",
        "sensor.sensor": "build_group_sensor",
        "settings.asset_arguments": "AssetArguments",
        "settings.groups": (
            "Batching Completeness CrashLag Iceberg Maintenance Membership Offsets ResourceKeys Sensor Sla"
        ),
        "spark.decode.json_column": "from_json",
        "spark.errors": (
            "KafkaSourceError RowsOutsideBatchError SparkCancelledError SparkFailedError "
            "SparkNotRespondingError SparkUnreachableError StorageError TableSchemaError "
            "TableUnreadableError TransformError UnreadableRecordError WriteConflictError"
        ),
        "spark.sink": "Replacement Sink SinkCommit merge_ledger_texts",
    }.items()
    for name in names.split()
}

# As pyspark's own ``remote(…)`` does, which this package does not use. pyspark reads the variable where the
# user defines a function (@udf, @pandas_udf), before any session exists
os.environ.setdefault("SPARK_CONNECT_MODE_ENABLED", "1")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - costs more than the package itself

        return version("kafka-liveness-dagster")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    # Each command of dg loads every name of this list, so names that would import a client are left out
    offered = (name for name in __all__ if not _HOMES[name].startswith(("kafka.", "spark.decode.")))
    return sorted((*offered, "__version__", "__doc__", "__name__", "__file__", "__path__"))
