"""Identify the run of a commit or a member by 8 hex digits, and by names that contain them.

Never queries Dagster.

>>> short_run_id("0badcafe-1111-2222-3333-444444444444")
'0badcafe'
"""

from __future__ import annotations

import hashlib
import re

_RUN = re.compile("[0-9a-f]{8}")
_INSTANCE_ID = re.compile(r"kafka-liveness\.([^.]+)\.[0-9a-f]{8}")


def short_run_id(run_id: str) -> str:
    """Return the 8 hex digits by which commit metadata names a run.

    They are the first 8 of a Dagster run id, else derived from the id.
    """
    digits = run_id.replace("-", "")[:8]
    return digits if is_short_run_id(digits) else hashlib.sha256(run_id.encode()).hexdigest()[:8]


def is_short_run_id(text: str) -> bool:
    """Return whether a text has the form of a run's digits.

    >>> is_short_run_id("0badcafe"), is_short_run_id("kcat at 10.0.0.7")
    (True, False)
    """
    return _RUN.fullmatch(text) is not None


def run_id_of_client(client_id: str) -> str | None:
    """Return the run's digits from ``dagster/<job>/<run id>/<step>`` or a script's id.

    None for an external client.

    >>> run_id_of_client("dagster/orders_job/0badcafe-1111-2222-3333-444444444444/orders")
    '0badcafe'
    >>> run_id_of_client("rdkafka") is None
    True
    """
    owner, run_id = _parse_client_id(client_id)
    return short_run_id(run_id) if run_id and owner in ("dagster", "kafka-liveness") else None


def dagster_run_id_of_client(client_id: str) -> str | None:
    """Return the whole id of the Dagster run; None for a script or an external client.

    >>> dagster_run_id_of_client("dagster/orders_job/0badcafe-1111/orders")
    '0badcafe-1111'
    >>> dagster_run_id_of_client("kafka-liveness/x/1/2")
    """
    owner, run_id = _parse_client_id(client_id)
    return (run_id or None) if owner == "dagster" else None


def instance_id_for_run(run_id: str, membership: str) -> str:
    """Return the ``group.instance.id`` of a membership; its 8 hex digits are unique within the run.

    >>> instance_id_for_run("0badcafe-1111", "00c0ffee")
    'kafka-liveness.0badcafe-1111.00c0ffee'
    """
    return f"kafka-liveness.{run_id}.{membership}"


def run_id_of_instance(group_instance_id: str | None) -> str | None:
    """Return the whole id of the run in such an instance id; None for an id set by a user.

    >>> run_id_of_instance("kafka-liveness.0badcafe-1111.00c0ffee"), run_id_of_instance("etl-0")
    ('0badcafe-1111', None)
    """
    found = _INSTANCE_ID.fullmatch(group_instance_id or "")
    return found[1] if found else None


def _parse_client_id(client_id: str) -> tuple[str, str]:
    owner, _, rest = client_id.partition("/")
    return owner, rest.partition("/")[2].partition("/")[0]
