"""Tests of the simulator's own honesty: a simulator that is wrong proves nothing."""
