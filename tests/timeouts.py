"""The timeouts of a group whose members speak KIP-848: the broker's to say."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource


def set_timeouts(bootstrap_servers: str, group_id: str, session: float, heartbeat: float) -> None:
    """Let a group have them, in seconds; a member of the classic protocol brings its own."""
    wanted = {"consumer.session.timeout.ms": session, "consumer.heartbeat.interval.ms": heartbeat}
    entries = [
        ConfigEntry(setting, str(round(seconds * 1000)), incremental_operation=AlterConfigOpType.SET)
        for setting, seconds in wanted.items()
    ]
    group = ConfigResource(ConfigResource.Type.GROUP, group_id, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([group])[group].result(timeout=20)
