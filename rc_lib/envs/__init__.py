"""Environments: a task's backends behind `reset`, `step` and `reward`."""
