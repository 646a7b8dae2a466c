"""The decisions: told facts and the time, they answer; no I/O, no clock, no thread, standard library only."""
