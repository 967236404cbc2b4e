"""What the notebooks of one run share: tasks, environments, folders and records.

A run has one root folder. Under it, ``checkpoints/seed<k>/<arm>`` holds what a resumed run needs
and ``records/seed<k>/<arm>`` the typed files that tables and figures are made from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from rc_lib import paths
from rc_lib.conditioning import Conditioning
from rc_lib.config import ARMS, Profile
from rc_lib.envs.bfcl import BFCLEnv
from rc_lib.evaluate import evaluate, write_per_item
from rc_lib.manifest import manifest, write_json
from rc_lib.policy import Policy
from rc_lib.rollout import Sampling
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


def stage2_arm(arm: str, p_high: float) -> tuple[str, Conditioning]:
    """Return the start (``sft`` or ``rctp``) and the conditioning of one of Table 1's RL arms.

    Deviation: the paper does not say what prompt plain GRPO sees on the RCTP-FT start, whose
    fine-tuning prompts all carry a token. Here GRPO carries none, as its name says.

    Raises:
        ValueError: for an arm without a second stage.

    >>> stage2_arm("rctp_rc_grpo", 0.5)
    ('rctp', Conditioning(kind='iid', p_high=0.5, token=None))
    """
    if arm not in ARMS:
        raise ValueError(f"arm {arm!r} has no RL stage; choose from {', '.join(ARMS)}")
    start, method = arm.split("_", 1)
    if method == "rc_grpo":
        return start, Conditioning("iid", p_high=p_high)
    return start, Conditioning("none")


def evaluate_sets(
    policy: Policy, profile: Profile, *, arm: str, seed: int, progress: bool = True
) -> pd.DataFrame:
    """Evaluate on every test set under the high, the low and no token, greedy and sampled."""
    frames = [
        evaluate(
            policy, tasks, environment(profile), profile=profile.name, model=profile.model,
            arm=arm, seed=seed, test_set=name, progress=progress,
            sampling=sampling(profile, profile.evaluation_temperature),
            batch_size=profile.rl.rollout_batch_size,
        )
        for name, tasks in evaluation_sets(profile).items()
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
