"""An unexpected error is raised again, logged with its trace, or kept silent for a written reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kafka_liveness_dagster

PACKAGE = Path(kafka_liveness_dagster.__file__).parent
FILES = sorted([*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "definitions").rglob("*.py")])
_NOQA = re.compile(r"noqa(: *[A-Z]+[0-9]+(, *[A-Z]+[0-9]+)*)?")
_BROAD = {"Exception", "BaseException"}


def _is_broad(kind: ast.expr | None) -> bool:
    return kind is None or any(isinstance(one, ast.Name) and one.id in _BROAD for one in ast.walk(kind))


def _tells(handler: ast.ExceptHandler) -> bool:
    """Whether it raises, or logs the error with its trace."""
    for one in ast.walk(handler):
        if isinstance(one, ast.Raise):
            return True
        is_logged = isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
        if is_logged and (
            one.func.attr == "exception" or any(keyword.arg == "exc_info" for keyword in one.keywords)
        ):
            return True
    return False


def _reason(line: str) -> str:
    """The comment of a line, without what it says to the linter."""
    return _NOQA.sub("", line.partition("#")[2]).strip(" -#")


def silent(source: str) -> list[int]:
    """The lines of what catches every error, says nothing, and gives no reason for it."""
    lines, found = source.splitlines(), []
    for one in ast.walk(ast.parse(source)):
        if isinstance(one, ast.ExceptHandler):
            is_silent = _is_broad(one.type) and not _tells(one)
        elif isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "suppress":
            is_silent = any(_is_broad(kind) for kind in one.args)
        else:
            continue
        if is_silent and len(_reason(lines[one.lineno - 1]).split()) < 3:
            found.append(one.lineno)
    return sorted(found)


def test_no_error_is_kept_silent_without_a_reason():
    """A reason is a comment on the line that catches."""
    found = {str(file.relative_to(PACKAGE.parent)): silent(file.read_text()) for file in FILES}
    assert len(found) > 1
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("caught", "is_found"),
    [
        ("except Exception:\n    pass", True),
        ("except:\n    pass", True),
        ("except (ValueError, BaseException) as error:\n    log.warning('%s', error)", True),
        ("except Exception:  # noqa: BLE001\n    pass", True),
        ("except Exception:  # noqa: BLE001 - the next look asks again\n    pass", False),
        ("except Exception:\n    log.exception('failed')", False),
        ("except Exception:\n    log.warning('failed', exc_info=True)", False),
        ("except Exception as error:\n    if error.args:\n        raise", False),
        ("except ValueError:\n    pass", False),
    ],
)
def test_what_counts_as_silence(caught, is_found):
    """The rule itself."""
    assert silent(f"try:\n    work()\n{caught}\n") == ([3] if is_found else [])


@pytest.mark.parametrize(("comment", "is_found"), [("", True), ("  # the server may be gone", False)])
def test_suppressed_errors_need_a_reason_too(comment, is_found):
    """It is the shorter form of the same."""
    assert silent(f"with suppress(Exception):{comment}\n    work()\n") == ([1] if is_found else [])
