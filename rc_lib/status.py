"""How far a reproduction is: every stage's state, why it has to run, and the time left."""

from rc_lib.scheduler import Run, clock, several


def status_lines(run: Run) -> list[str]:
    """Return the lines of ``rc status``; reads only.

    A time with ``~`` is an estimate: the mean of the notebook's measured times, else what is
    expected of it.

    Args:
        run: of `rc_lib.pipeline.plan`; what a later table replaces at once is dropped from it.
    """
    states = run.take_stock()
    lines = [f"{'state':12} {'time':>8}  stage"]
    for stage in run.declared:
        state = states[stage.title]
        seconds = clock(state.stamp.get("seconds", run.estimate(stage.notebook)))
        exact = "" if state.kind == "cached" else "~"
        why = f": {several(state.why)}" if state.why else ""
        lines.append(f"{state.kind:12} {exact + seconds:>8}  {stage.title}{why}")
    left = f"about {clock(run.seconds_left())} left" if len(run.done) < len(states) else "all done"
    jobs = f"{run.jobs} job{'s' if run.jobs > 1 else ''}"
    return [*lines, f"{len(run.done)} of {len(states)} stages are cached; with {jobs} {left}"]
