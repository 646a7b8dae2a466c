"""Which run does a commit, or a member, belong to? Each run has 8 hex digits, and names that hold it.

>>> run_mark("0badcafe-1111-2222-3333-444444444444")
'0badcafe'
"""

from __future__ import annotations

import hashlib
import re

_RUN = re.compile("[0-9a-f]{8}")
_PLACE = re.compile(r"kafka-liveness\.([^.]+)\.[0-9a-f]{8}")


def run_mark(run_id: str) -> str:
    """The 8 hex digits by which commit metadata names a run: a Dagster run id's first, else some made of the id."""
    digits = run_id.replace("-", "")[:8]
    return digits if is_run_mark(digits) else hashlib.sha256(run_id.encode()).hexdigest()[:8]


def is_run_mark(text: str) -> bool:
    """Whether a text has the form of a run's digits.

    >>> is_run_mark("0badcafe"), is_run_mark("kcat at 10.0.0.7")
    (True, False)
    """
    return _RUN.fullmatch(text) is not None


def run_of_client(client_id: str) -> str | None:
    """The run's digits out of ``dagster/<job>/<run id>/<step>`` or a script's id; None of a foreign client.

    >>> run_of_client("dagster/orders_job/0badcafe-1111-2222-3333-444444444444/orders"), run_of_client("rdkafka")
    ('0badcafe', None)
    """
    owner, run_id = _owner_and_run(client_id)
    return run_mark(run_id) if run_id and owner in ("dagster", "kafka-liveness") else None


def dagster_run_of_client(client_id: str) -> str | None:
    """The whole id of the Dagster run; None of a script and of a foreign client.

    >>> dagster_run_of_client("dagster/orders_job/0badcafe-1111/orders"), dagster_run_of_client("kafka-liveness/x/1/2")
    ('0badcafe-1111', None)
    """
    owner, run_id = _owner_and_run(client_id)
    return (run_id or None) if owner == "dagster" else None


def place_of(run_id: str, membership: str) -> str:
    """The ``group.instance.id`` of a run's membership: 8 hex digits of its own tell it from the run's others.

    >>> place_of("0badcafe-1111", "00c0ffee")
    'kafka-liveness.0badcafe-1111.00c0ffee'
    """
    return f"kafka-liveness.{run_id}.{membership}"


def run_of_place(group_instance_id: str | None) -> str | None:
    """The whole id of the run that such a name was made for; None of a name that somebody gave.

    >>> run_of_place("kafka-liveness.0badcafe-1111.00c0ffee"), run_of_place("etl-0")
    ('0badcafe-1111', None)
    """
    found = _PLACE.fullmatch(group_instance_id or "")
    return found[1] if found else None


def _owner_and_run(client_id: str) -> tuple[str, str]:
    owner, _, rest = client_id.partition("/")
    return owner, rest.partition("/")[2].partition("/")[0]
