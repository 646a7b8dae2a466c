"""Decisions as pure functions of facts and time: no I/O, no clock, no thread, only the standard library."""
