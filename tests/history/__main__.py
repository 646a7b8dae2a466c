"""Check a history file and print the report; ``python -m tests.history FILE``.

Exit code 1: there are anomalies.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.history.checker import check
from tests.history.events import HistoryError, HistoryFile
from tests.history.report import report


def main(argv: list[str] | None = None) -> int:
    """Print the report; return the exit code: 0 no anomaly, 1 anomalies, 2 the file cannot be checked."""
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__)
    parser.add_argument("file", type=Path, help="a history: JSON lines")
    try:
        events = HistoryFile(parser.parse_args(argv).file).events()
        anomalies = check(events)
    except (OSError, HistoryError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.writelines(f"{line}\n" for line in report(events, anomalies))
    return 1 if anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
