"""What the notebooks of one run share: tasks, environments, folders and records.

A run has one root folder. Under it, ``checkpoints/seed<k>/<arm>`` holds what a resumed run needs
and ``records/seed<k>/<arm>`` the typed files that tables and figures are made from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from rc_lib import arms, paths
from rc_lib.conditioning import Conditioning
from rc_lib.config import Profile, RLConfig
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.evaluate import evaluate, write_per_item
from rc_lib.manifest import manifest, write_json
from rc_lib.policy import Policy
from rc_lib.rollout import Rollout, Sampling
from rc_lib.sft import Trajectory, expert, relabel
from rc_lib.tasks.base import Task
from rc_lib.tasks.generated import GeneratedTask, generated_tasks


def training_tasks(profile: Profile) -> tuple[GeneratedTask, ...]:
    """Return the profile's training tasks, at most 720.

    >>> from rc_lib.config import get_profile
    >>> len(training_tasks(get_profile("smoke")))
    16
    """
    return generated_tasks("train", profile.train_tasks)


def evaluation_sets(profile: Profile) -> dict[str, tuple[GeneratedTask, ...]]:
    """Return the profile's test sets by name.

    >>> from rc_lib.config import get_profile
    >>> {name: len(tasks) for name, tasks in evaluation_sets(get_profile("tiny")).items()}
    {'test': 80, 'power': 240, 'unseen_wording': 80}
    """
    return {name: generated_tasks(name, n) for name, n in profile.test_tasks.items()}


def environment(profile: Profile) -> Callable[[Task], BFCLEnv]:
    """Return the function that makes a task's environment, in the paper's merged protocol."""

    def make(task: Task) -> BFCLEnv:
        return BFCLEnv(
            task,
            protocol="merged",
            max_steps=profile.max_steps,
            observation_chars=profile.observation_chars,
        )

    return make


def sampling(profile: Profile, temperature: float) -> Sampling:
    """Return the profile's sampling settings at a temperature."""
    return Sampling(temperature, profile.rl.max_new_tokens, profile.rl.max_length)


def run_root(profile: Profile, results_dir: str = "") -> Path:
    """Return the root folder of a run: ``results_dir``, or ``runs/<profile>`` where it is empty."""
    return paths.resolve(results_dir) if results_dir else paths.results_dir(profile.name)


def save_policy(policy: Policy, folder: Path) -> None:
    """Write a policy so that the folder either holds all of it or does not exist."""
    partial = folder.with_name(folder.name + ".partial")
    for stale in (partial, folder):
        shutil.rmtree(stale, ignore_errors=True)
    policy.save_pretrained(partial)
    os.replace(partial, folder)


def stage1_trajectories(
    policy: Policy, profile: Profile, start: arms.Start, failures: Sequence[Rollout] = ()
) -> list[Trajectory]:
    """Return what a start imitates: every task's reference, and failures under the low token.

    Args:
        policy: its tokenizer writes the transcripts.
        profile: whose training tasks.
        start: what the references carry, and whether failures are imitated too.
        failures: of `rc_lib.sft.explore`, at most one a task.

    Raises:
        ValueError: for failures that are missing or not wanted.
    """
    if bool(failures) != start.failures:
        raise ValueError(
            f"start {start.name} got {len(failures)} failures; "
            + ("explore the tasks first" if start.failures else "it imitates successes only")
        )
    tasks, make_env = training_tasks(profile), environment(profile)
    by_id = {task.id: task for task in tasks}
    references = [
        expert(policy, make_env(task), task.actions, start.token, start.placeholder)
        for task in tasks
    ]
    return references + [
        relabel(policy, make_env(by_id[played.task_id]), played, token=arms.LOW)
        for played in failures
    ]


def stage2(profile: Profile, arm: str) -> tuple[str, Conditioning, RLConfig]:
    """Return the start, the conditioning and the settings of an arm of stage 2.

    Deviation: the paper does not say what prompt plain GRPO sees on the RCTP-FT start, whose
    fine-tuning prompts all carry a token. Here GRPO carries none, as its name says.

    Raises:
        ValueError: for an arm without a second stage.

    >>> from rc_lib.config import get_profile
    >>> stage2(get_profile("tiny"), "rctp_rc_grpo")[:2]
    ('rctp', Conditioning(kind='iid', p_high=0.5, token=None))
    """
    row = arms.rl_arm(arm)
    p_high = profile.p_high if row.p_high is None else row.p_high
    return row.start, Conditioning(row.conditioning, p_high=p_high), row.config(profile)


def evaluate_sets(
    policy: Policy, profile: Profile, *, arm: str, seed: int, progress: bool = True
) -> pd.DataFrame:
    """Evaluate under the high, the low and no token, on the sets and by the decodings of an arm.

    Table 1's arms are tested on every set, greedy and sampled; the others as `arms.SHORT` says.
    """
    plan = arms.evaluation(arm)
    frames = [
        evaluate(
            policy, tasks, environment(profile), profile=profile.name, model=profile.model,
            arm=arm, seed=seed, test_set=name, progress=progress,
            sampling=sampling(profile, profile.evaluation_temperature),
            decodings=plan.decodings, batch_size=profile.rl.rollout_batch_size,
        )
        for name, tasks in evaluation_sets(profile).items()
        if name in plan.test_sets
    ]  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def write_record(
    root: Path,
    profile: Profile,
    *,
    arm: str,
    seed: int,
    per_item: pd.DataFrame,
    metrics: dict,
    started: float,
    inputs: list[Path],
    curve: pd.DataFrame | None = None,
    timing: pd.DataFrame | None = None,
    groups: pd.DataFrame | None = None,
) -> Path:
    """Write one arm's record, manifest.json last.

    Args:
        per_item: results item by item (`evaluate_sets`).
        metrics: what else was measured of the arm, plain JSON.
        started: ``time.time()`` at the start of the work.
        inputs: files that the arm was made from.
        curve: one row a training step, equal in every run.
        timing: one row a training step, what may differ from run to run.
        groups: one row a group of every training step, with its tokens and rewards.

    Returns:
        The folder, with per_item.csv, metrics.json, manifest.json and the tables that were given.
    """
    folder = paths.record_dir(root, seed, arm)
    folder.mkdir(parents=True, exist_ok=True)
    write_per_item(per_item, folder / "per_item.csv")
    for name, table in {"curve.csv": curve, "timing.csv": timing, "groups.csv": groups}.items():
        if table is not None:
            unfinished = folder / f"{name}.tmp"
            table.to_csv(unfinished, index=False, lineterminator="\n")
            os.replace(unfinished, folder / name)
    write_json(metrics, folder / "metrics.json")
    details = manifest(
        parameters={"profile": profile.name, "arm": arm, "seed": seed},
        seed=seed,
        inputs=inputs,
        started=started,
        batch_size=profile.rl.rollout_batch_size,
    )
    write_json(details, folder / "manifest.json")
    return folder
