"""Exclude what the process of one run imports from Python's garbage collection.

Does nothing in other processes, which may have garbage of their own.
"""

from __future__ import annotations

import gc
import multiprocessing
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def freeze_definitions() -> None:
    """Exclude the objects that exist now from garbage collection, in a process that exists for one run.

    They are Dagster's modules and the definitions of the code location, which stay until the process ends. A
    full collection takes 0.1 s to walk over them, and PySpark's import alone starts one.
    """
    if _is_of_one_run() and not gc.get_freeze_count():
        gc.freeze()


@contextmanager
def freeze_imports() -> Iterator[None]:
    """Collect no garbage in this block, and exclude what it imports as well, in a process of one run.

    PySpark and pandas are 130,000 objects. Collections would walk over them during the import, and after it.
    """
    if not (_is_of_one_run() and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _is_of_one_run() -> bool:
    return multiprocessing.parent_process() is not None
