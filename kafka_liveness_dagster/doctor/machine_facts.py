"""What is missing on this machine for the embedded services? Java, the jars, and the catalog's file.

Starts nothing, downloads nothing, writes nothing.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from kafka_liveness_dagster.core.errors import KafkaLivenessError
from kafka_liveness_dagster.doctor.rules import FAIL, OK, CheckResult, Finding
from kafka_liveness_dagster.embedded import jars, state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_CATALOG_SECONDS = 5.0


def check_machine() -> Iterator[Finding]:
    """Check one thing after the other; a failed check does not end the rest."""
    checks: dict[str, Callable[[], CheckResult]] = {
        "java": lambda: OK(str(jars.find_java())),
        "jars": _check_jars,
        "catalog": lambda: _check_state_file(state.home_folder()),
    }
    for name, check in checks.items():
        try:
            answer = check()
        except KafkaLivenessError as error:
            answer = FAIL(str(error))
        yield Finding("machine", name, answer)


def _check_jars() -> CheckResult:
    if broken := [jar for name in jars.NAMES for jar in jars.find_damaged(name)]:
        return FAIL(
            f"{', '.join(broken[:3])} in {jars.jars_folder()} are not those of the release",
            "`kafka-liveness up` downloads them again",
        )
    missing = [name for name in jars.NAMES if not jars.is_downloaded(name)]
    if missing:
        return FAIL(
            f"those of {' and '.join(missing)} are not in {jars.jars_folder()}",
            "`kafka-liveness up` downloads them",
        )
    return OK(
        f"complete in {jars.jars_folder()}, checksums of the release, for pyspark {jars.check_pyspark()}"
    )


def _check_state_file(home: Path) -> CheckResult:
    file = home / state.CATALOG_FILE
    if not file.exists() or file.stat().st_size == 0:
        return OK(f"{file} is made with the first table")
    if not os.access(home / "warehouse", os.W_OK):
        return FAIL(f"{home}/warehouse is not writable", "change its owner, or set KAFKA_LIVENESS_HOME")
    try:
        with closing(sqlite3.connect(file, timeout=_CATALOG_SECONDS)) as catalog:
            (tables,) = catalog.execute("select count(*) from iceberg_tables").fetchone()
    except sqlite3.Error as error:
        return FAIL(
            f"{file} cannot be read ({error})", "move it away with the warehouse to start from scratch"
        )
    return OK(f"{file}, {tables} table(s)")
