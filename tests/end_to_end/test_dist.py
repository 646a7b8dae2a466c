"""What is released is whole: what `make dist` looks into, without its downloads."""

from __future__ import annotations

from tests.end_to_end.dist import build, look_into


def test_wheel_and_sdist_hold_what_they_should(tmp_path):
    """Types, the lists of jars, the example; pages and tools; and one wheel, whichever way it is built."""
    look_into(*build(tmp_path, "wheel", "sdist"), tmp_path / "again")
