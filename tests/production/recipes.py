"""The recipes of docs/production.md and docs/dagster-instance.md, and docs/deployment.md's workspace file."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "dagster-instance.md").read_text(encoding="utf-8")
_CHECKUP = (_ROOT / "docs" / "production.md").read_text(encoding="utf-8").replace("\\\n  ", "")
_WORKSPACE = _ROOT / "deploy" / "systemd" / "etc" / "workspace.yaml"
SETTINGS, STORAGE = re.findall(r"^```yaml\n(.*?)^```", _PAGE, re.DOTALL | re.MULTILINE)
"""The two parts of ``dagster.yaml``."""
[URL] = re.findall(r"^export DAGSTER_PG_URL=\\\n(\S+)$", _PAGE, re.MULTILINE)
"""The URL of a PostgreSQL, with a placeholder for the password and for the address."""
[DOCTOR] = re.findall(r"^(kafka-liveness doctor .*--bootstrap-servers .*)$", _CHECKUP, re.MULTILINE)
[POOL] = re.findall(r"^(dagster instance concurrency set \S+ \d+)$", _PAGE, re.MULTILINE)


def dagster_yaml(**settings):
    """Return the page's dagster.yaml with its Postgres part; ``settings`` replace what stands there."""
    text = SETTINGS + STORAGE
    for name, value in settings.items():
        text, found = re.subn(rf"^( *{name}:) \S+", rf"\1 {value}", text, flags=re.MULTILINE)
        assert found == 1, name
    return text


def workspace_yaml(sockets):
    """Return the workspace file with an entry for each code server.

    ``sockets`` has their files by location.
    """
    workspace = yaml.safe_load(_WORKSPACE.read_text())
    [entry] = workspace["load_from"]
    entries = [
        {"grpc_server": {**entry["grpc_server"], "socket": str(socket), "location_name": name}}
        for name, socket in sockets.items()
    ]
    return yaml.safe_dump({**workspace, "load_from": entries})
