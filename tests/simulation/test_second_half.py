"""Whatever happens in whichever order.

Nothing is lost, nothing is there twice, nobody hangs, what is told is true.
"""

from __future__ import annotations

from tests.simulation.histories import go_through, half


def test_all_invariants_hold_after_every_step():
    """Crashes, zombies, handovers, refusals, backfills, enemies, lost updates, at any time in any order."""
    go_through(half(1))
