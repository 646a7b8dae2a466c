"""Create a project with ``kafka-liveness init``: a pipeline, its test, and the recommended settings.

Writes into a new folder only, so that no file of the user is replaced.
"""

from __future__ import annotations

import json
import keyword
import re
import shutil
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import click

from kafka_liveness_dagster.cli.options import GROUP, TABLE, TOPIC, json_option

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEMPLATES = Path(__file__).with_name("project")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "definitions.py": "src/{package}/definitions.py",
    "tests/test_definitions.py": "tests/test_definitions.py",
    "Makefile": "Makefile",
    "README.md": "README.md",
    "dagster-instance.yaml": "dagster-instance.yaml",
    "gitignore": ".gitignore",
}
"""Each template with the path of its file in the project."""


@click.command()
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path))
@click.option("--topic", type=TOPIC, default="orders", show_default=True, help="The topic to read.")
@click.option("--table", type=TABLE, help="The Iceberg table to write.  [default: lake.shop.TOPIC]")
@click.option("--group", type=GROUP, help="The consumer group.  [default: TOPIC-etl]")
@json_option
def init(folder: Path, *, topic: str, table: str | None, group: str | None, as_json: bool) -> None:
    """Create a project with a test and settings.

    NAME is a new folder. Its pipeline decodes JSON, sets bad records aside and recovers from a crash. It also
    gets a test of the transform that needs no service, the recommended dagster.yaml, and a Makefile.
    `kafka-liveness doctor` has no warning for this project.

    \b
    Example:
      kafka-liveness init shop --topic orders
      cd shop && make test
    """  # noqa: D301  click's own mark: do not rewrap what follows
    name = folder.name
    asset = _identifier(topic)
    if not _NAME.fullmatch(name) or keyword.iskeyword(_identifier(name)) or _identifier(name) == "tests":
        raise click.BadParameter(
            f"{name!r} is not a name for a project. Use small letters, digits, - and _, such as orders-etl.",
            param_hint="NAME",
        )
    if keyword.iskeyword(asset) or not asset.isidentifier():
        raise click.BadParameter(
            f"Topic {topic!r} gives no name for an asset, which is a Python function. Choose --topic orders, "
            "and change the topic in definitions.py.",
            param_hint="--topic",
        )
    if folder.exists():
        raise click.BadParameter(f"{folder} exists. Choose a new folder.", param_hint="NAME")
    values = {
        "name": name,
        "package": _identifier(name),
        "asset": asset,
        "topic": topic,
        "table": table or f"lake.shop.{asset}",
        "group": group or f"{topic}-etl",
    }
    files = dict(_files(values))
    try:
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise click.ClickException(
            f"Project {folder} cannot be written: {error}. No file is left."
        ) from error
    if as_json:
        click.echo(json.dumps({"folder": str(folder), "files": sorted(files)}))
        return
    click.echo(f"Created {folder}: {', '.join(sorted(files))}")
    click.echo(f"Next: cd {folder} && make test && make up && make dev; README.md has the other commands.")


def _identifier(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _files(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file of the project."""
    for source, target in _FILES.items():
        template = Template((_TEMPLATES / f"{source}.txt").read_text(encoding="utf-8"))
        yield target.format(package=values["package"]), template.substitute(values)
    yield f"src/{values['package']}/__init__.py", ""
