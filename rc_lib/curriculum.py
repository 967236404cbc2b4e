"""How many demonstrations a prompt carries at which step, and which ones.

Source: ICRL (arXiv 2603.08068): the rollout prompt carries N demonstrations of tool use, and N
falls in stages until the policy works without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rc_lib.demonstrations import Demonstration
from rc_lib.envs.base import Environment
from rc_lib.seeding import rng

PICKS = ("first", "random")


class Place(NamedTuple):
    """Where a step lies: the stage's index, its number of demonstrations, and its first step."""

    stage: int
    shots: int
    start: int


@dataclass(frozen=True)
class Curriculum:
    """A schedule of demonstrations: a function of the step, or of recorded validity, alone.

    Source: ICRL: 3-2-0 and 3-2-1-0; "several steps" a stage, 100 in the official code.

    Deviation: a stage of n steps has n updates, and the next one starts from its last weights. The
    official code raises its step counter before it compares it with the total: 100 steps are 99
    updates, the checkpoint of step 100 is never written, and the next stage starts from step 50.

    Deviation: leaving a stage by measured validity, and demonstrations drawn at random, are not in
    the paper, whose k-shot prompts carry the first k demonstrations.

    Attributes:
        stages: (shots, steps) of each stage; the last stage goes on after its steps.
        pool: demonstrations to choose from.
        pick: "first" (the first k of the pool) or "random" (k of the pool by seed, step and group).
        threshold: None: stages end by their steps alone. A share in (0, 1]: a stage also ends as
            soon as a measured zero-shot validity reaches it.
        measure_every: steps between measurements of the zero-shot validity.
        stage_restart: whether a stage starts with a fresh optimizer, warm-up and KL reference, as
            in the official code, where every stage is a process of its own.

    Raises:
        ValueError: for no stages, a negative number of shots, fewer than 1 steps, more shots than
            the pool holds, an unknown pick, a threshold outside (0, 1] or an interval below 1.

    >>> from rc_lib.envs.base import Message
    >>> solved = Demonstration("Who?", (Message("assistant", "<answer> I </answer>"),))
    >>> curriculum = Curriculum(((1, 100), (0, 100)), pool=(solved,))
    >>> curriculum.place(99), curriculum.place(100)
    (Place(stage=0, shots=1, start=0), Place(stage=1, shots=0, start=100))
    """

    stages: tuple[tuple[int, int], ...] = ((0, 1),)
    pool: tuple[Demonstration, ...] = ()
    pick: str = "first"
    threshold: float | None = None
    measure_every: int = 10
    stage_restart: bool = False

    def __post_init__(self) -> None:
        if not self.stages or any(shots < 0 or steps < 1 for shots, steps in self.stages):
            raise ValueError(f"stages {self.stages} must be one or more (shots >= 0, steps >= 1)")
        most = max(shots for shots, _ in self.stages)
        if most > len(self.pool):
            raise ValueError(
                f"a stage shows {most} demonstrations but the pool has {len(self.pool)}; add some"
            )
        if self.pick not in PICKS:
            raise ValueError(f"unknown pick {self.pick!r}; use one of {PICKS}")
        if self.threshold is not None and not 0.0 < self.threshold <= 1.0:
            raise ValueError(f"threshold {self.threshold} must be None or a share in (0, 1]")
        if self.measure_every < 1:
            raise ValueError(f"measure_every {self.measure_every} must be at least 1")

    @property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(steps for _, steps in self.stages)

    def place(self, step: int, validity: Mapping[int, float] | None = None) -> Place:
        """Return the stage of a step.

        Args:
            step: training step, >= 0.
            validity: step -> zero-shot validity measured before that step's update, at all steps
                for which `measures` was True; read only with a threshold, and up to this step.

        Raises:
            ValueError: for a negative step or a measurement that is missing.
        """
        if step < 0:
            raise ValueError(f"step {step} must not be negative")
        start = 0
        for index, (shots, steps) in enumerate(self.stages[:-1]):
            end = self._end(start, start + steps, step, validity or {})
            if step < end:
                return Place(index, shots, start)
            start = end
        return Place(len(self.stages) - 1, self.stages[-1][0], start)

    def _end(self, start: int, end: int, step: int, validity: Mapping[int, float]) -> int:
        """Return the first step after a stage that starts at `start`, as far as known at `step`."""
        if self.threshold is None:
            return end
        every = self.measure_every
        for measured in range((start // every + 1) * every, min(end, step + 1), every):
            if measured not in validity:
                raise ValueError(
                    f"no zero-shot validity recorded for step {measured}; the stage of step {step} "
                    "depends on it, measure where measures(step) is True"
                )
            if validity[measured] >= self.threshold:
                return measured
        return end

    def measures(self, step: int, validity: Mapping[int, float] | None = None) -> bool:
        """Return whether the zero-shot validity is to be measured before a step's update.

        Args:
            step: training step, >= 0.
            validity: measurements of the steps before.
        """
        if self.threshold is None or step < 1 or step % self.measure_every:
            return False
        stage, _, start = self.place(step - 1, validity)
        last = stage == len(self.stages) - 1
        return not last and step < start + self.stages[stage][1]

    def restarts(self, step: int, validity: Mapping[int, float] | None = None) -> bool:
        """Return whether optimizer, warm-up and KL reference start afresh before a step."""
        stage, _, start = self.place(step, validity)
        return self.stage_restart and stage > 0 and step == start

    def demonstrations(
        self, seed: int, step: int, group_id: int, validity: Mapping[int, float] | None = None
    ) -> tuple[Demonstration, ...]:
        """Return what all members of a group see; depends on nothing but the arguments.

        Args:
            seed: run seed.
            step: training step, >= 0.
            group_id: group within the step, >= 0.
            validity: as in `place`.
        """
        shots = self.place(step, validity).shots
        if self.pick == "first" or not shots:
            return self.pool[:shots]
        order = rng(seed, "demonstrations", step, group_id).permutation(len(self.pool))
        return tuple(self.pool[i] for i in order[:shots])

    def show(
        self,
        env: Environment,
        seed: int,
        step: int,
        group_id: int,
        validity: Mapping[int, float] | None = None,
    ) -> Environment:
        """Give an environment its group's demonstrations, and return it.

        Raises:
            ValueError: if there are some and the environment has no `demonstrations` to set.
        """
        chosen = self.demonstrations(seed, step, group_id, validity)
        if chosen and not hasattr(env, "demonstrations"):
            raise ValueError(
                f"{type(env).__name__} shows no demonstrations; use an environment that does, or "
                "stages of 0 shots"
            )
        if chosen:
            env.demonstrations = chosen
        return env


def stages(name: str, steps: int | Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the stages that a name such as "3-2-0" stands for.

    Args:
        name: numbers of demonstrations, joined by "-"; "0" is training without any.
        steps: steps of each stage, or one number for all.

    Raises:
        ValueError: for a name that is not numbers, or another number of steps than of stages.

    >>> stages("3-2-1-0", 100)
    ((3, 100), (2, 100), (1, 100), (0, 100))
    >>> stages("3-0", [60, 40])
    ((3, 60), (0, 40))
    """
    shots = name.split("-")
    if not all(map(str.isdecimal, shots)):
        raise ValueError(f"schedule {name!r} must be numbers joined by '-', such as '3-2-0'")
    lengths = [steps] * len(shots) if isinstance(steps, int) else list(steps)
    if len(lengths) != len(shots):
        raise ValueError(f"schedule {name!r} has {len(shots)} stages but steps are {lengths}")
    return tuple((int(shot), length) for shot, length in zip(shots, lengths, strict=True))
