"""What the records say about a claim: its measured quantity with a 95 % interval over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t as student

from rc_lib import arms
from rc_lib.config import ALL_ARMS, Profile, get_profile
from rc_lib.records import (
    DECODINGS,
    TOKENS,
    check_choice,
    read_records,
    record_files,
    seed_item_matrix,
)
from rc_lib.stats import cluster_of, crossed_bootstrap
from rc_lib.table1 import MAIN_DECODING
from rc_lib.variance_records import decompose_groups, group_arrays


class Measure(NamedTuple):
    """The record file that a measure reads, what one n of it is, and the entries that it needs."""

    file: str
    counted: str
    needs: tuple[str, ...] = ()


MEASURES = {
    "accuracy": Measure("per_item.csv", "tasks"),
    "start": Measure("metrics.json", "groups"),
    "curve": Measure("curve.csv", "steps", ("column", "phase")),
    "correlation": Measure("curve.csv", "steps", ("columns",)),
    "groups": Measure("groups.csv", "groups", ("quantity", "phase")),
}
CHOICES = {
    "decoding": DECODINGS,
    "phase": ("all", "early", "late"),
    "quantity": ("paired_gap", "bound_slack"),
}


class Missing(LookupError):
    """A record to measure a claim with is missing; the message says which."""


class Estimate(NamedTuple):
    """A value, its 95 % interval, the seeds behind it, and n of a seed.

    One seed has no Student interval: its ends are nan. Where n differs, it is the smallest.
    """

    value: float
    low: float
    high: float
    seeds: tuple[int, ...]
    n: int


class Records:
    """The records of one run, per-item results read and checked.

    Args:
        root: folder that holds ``seed<k>/<arm>/``.
        profile: profile that the records must name.
        seeds: seeds to look for.

    Raises:
        FileNotFoundError: if there is not one per-item record.
        ValueError: for a damaged record.
    """

    def __init__(self, root: Path, profile: str, seeds: Sequence[int]):
        self.root, self.profile, self.seeds = Path(root), get_profile(profile), tuple(seeds)
        self.per_item = read_records(root, profile, seeds)

    def files(self, arm: str, name: str) -> dict[int, Path]:
        """Return an arm's record files of one name by seed; raises `Missing` for none."""
        found = record_files(self.root, name, self.seeds).items()
        mine = {seed: path for (owner, seed), path in found if owner == arm}
        if not mine:
            raise Missing(f"no {name} of {arm}")
        return mine


def measure(
    records: Records, claim: Mapping, contrast: Mapping[str, float], settings: Mapping, where: str
) -> Estimate:
    """Measure one contrast of a claim of ``claims.toml``, whose head explains the measures.

    Args:
        records: of one run.
        claim: a checked entry of the rules file.
        contrast: weights of what it compares.
        settings: of the rules file.
        where: test set that accuracy is taken on; the other measures come from training tasks.

    Raises:
        Missing: for a record, a column or an entry that is not there, or has no finite value.
        ValueError: for arms that were tested on different items.
    """
    if claim["measure"] == "accuracy":
        estimate = _accuracy(records.per_item, claim, contrast, where)
    else:
        estimate = _over_seeds(records, claim, contrast, settings["phase_share"])
    return _mapped(lambda x: x - claim.get("above", 0.0), estimate)


def check_measured(name: str, claim: Mapping) -> None:
    """Raise ValueError for a measured claim with an unknown choice, arm or token.

    Args:
        name: what to call the claim.
        claim: with the entries that its measure needs.
    """
    for entry, allowed in CHOICES.items():
        if entry in claim:
            check_choice(f"{name}: {entry}", [claim[entry]], allowed)
    if not claim["contrasts"] or not all(claim["contrasts"]):
        raise ValueError(f"{name}: an empty contrast; weigh at least one arm")
    kind = claim["measure"]
    for key in (key for contrast in claim["contrasts"] for key in contrast):
        mark = {"accuracy": "/", "start": ":"}.get(kind)
        arm, found, rest = key.partition(mark) if mark else (key, "", "")
        check_choice(f"{name}: arm", [arm], (*ALL_ARMS, *arms.EXTRA_ARMS))
        if kind == "accuracy" and found:
            check_choice(f"{name}: token of {arm}", [rest], TOKENS)
        if kind == "start" and not rest:
            raise ValueError(f"{name}: {key!r} names no entry; write arm:name.name")
        if kind == "groups":
            arms.rl_arm(arm)
    if kind == "correlation":
        for contrast in claim["contrasts"]:
            if [abs(weight) for weight in contrast.values()] != [1]:
                raise ValueError(f"{name}: contrast {contrast}; give one arm, weight 1 or -1")


def student_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds and its 95 % Student interval, nan for one seed.

    >>> [round(x, 3) for x in student_interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    >>> student_interval([1.0])
    (1.0, nan, nan)
    """
    values = np.asarray(values, dtype=np.float64)
    half = float("nan")
    if len(values) > 1:
        half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    mean = float(values.mean())
    return mean, float(mean - half), float(mean + half)


def split_arm(key: str) -> tuple[str, str]:
    """Return the arm and the token that a key of an accuracy contrast names.

    >>> split_arm("rctp/low"), split_arm("rctp_grpo"), split_arm("rctp_rc_grpo")
    (('rctp', 'low'), ('rctp_grpo', 'none'), ('rctp_rc_grpo', 'high'))
    """
    arm, _, token = key.partition("/")
    return arm, token or arms.main_token(arm)


def _accuracy(per_item: pd.DataFrame, claim: Mapping, contrast: Mapping, where: str) -> Estimate:
    """In points: a crossed bootstrap of the weighted differences, seed by seed and task by task."""
    decoding = claim.get("decoding", MAIN_DECODING)
    rows = per_item[(per_item["test_set"] == where) & (per_item["decoding"] == decoding)]
    cells, places = dict(iter(rows.groupby(["arm", "token"]))), map(split_arm, contrast)
    chosen = {place: cells.get(place) for place in places}
    lacking = ["/".join(place) for place, table in chosen.items() if table is None]
    if lacking:
        raise Missing(f"no {decoding} results on {where} of {', '.join(lacking)}")
    seeds = _common(contrast, [table["seed"] for table in chosen.values()])
    matrices = [seed_item_matrix(t[t["seed"].isin(seeds)]) for t in chosen.values()]
    items = matrices[0].columns
    if any(set(matrix.columns) != set(items) for matrix in matrices):
        raise ValueError(
            f"{', '.join(contrast)} were tested on different items of {where}; evaluate again"
        )
    weighted = zip(contrast.values(), matrices, strict=True)
    differences = sum(weight * matrix[items] for weight, matrix in weighted)
    result = crossed_bootstrap(differences, [cluster_of(item) for item in items])
    points = (100 * x for x in (result.mean, result.low, result.high))
    return Estimate(*points, seeds, len(items))


def _over_seeds(records: Records, claim: Mapping, contrast: Mapping, share: float) -> Estimate:
    """One number a seed, paired over the contrast's arms, and their Student interval."""
    found, file = {}, MEASURES[claim["measure"]].file
    for key in contrast:
        files = records.files(key.partition(":")[0], file).items()
        read = partial(_one_seed, claim, key, profile=records.profile, share=share)
        found[key] = {seed: read(path) for seed, path in files}
    seeds = _common(contrast, found.values())
    values = [sum(w * found[key][seed][0] for key, w in contrast.items()) for seed in seeds]
    if not np.isfinite(values).all():
        raise Missing(f"{file} gives no finite value for {', '.join(contrast)}")
    n = min(found[key][seed][1] for key in contrast for seed in seeds)
    estimate = Estimate(*student_interval(values), seeds, n)
    # Of a correlation the values are Fisher's z.
    return _mapped(np.tanh, estimate) if claim["measure"] == "correlation" else estimate


def _one_seed(
    claim: Mapping, key: str, path: Path, *, profile: Profile, share: float
) -> tuple[float, int]:
    """The measured number of one arm and seed, and the n behind it."""
    match claim["measure"]:
        case "start":
            return _start(path, key.partition(":")[2])
        case "curve":
            column = claim["column"]
            values = _phase(path, (column,), claim["phase"], share)[column]
            return values.to_numpy().mean(), len(values)
        case "correlation":
            pair = _phase(path, claim["columns"], "all", share)[claim["columns"]].to_numpy()
            if len(pair) < 3 or (pair == pair[0]).all(axis=0).any():
                return float("nan"), len(pair)
            return np.arctanh(np.corrcoef(pair.T)[0, 1]), len(pair)
        case "groups":
            groups = _phase(path, ("tokens", "rewards"), claim["phase"], share)
            p_high = arms.rl_arm(key).p_high
            return _groups(groups, claim["quantity"], profile.p_high if p_high is None else p_high)


def _start(path: Path, names: str) -> tuple[float, int]:
    value, groups = json.loads(path.read_text(encoding="utf-8")), {}
    for name in names.split("."):
        if name not in value:
            raise Missing(f"{path.name} of {path.parent.name} has no {names}")
        groups, value = value, value[name]
    return float(value), groups["groups"]


def _groups(groups: pd.DataFrame, quantity: str, p_high: float) -> tuple[float, int]:
    rewards, is_high = group_arrays(groups.astype({"rewards": str}))
    if is_high is None:
        raise Missing("groups.csv has no tokens")
    if quantity == "bound_slack":
        parts = decompose_groups(rewards, is_high, p_high)
        return parts["sigma2"] - parts["bound"], len(rewards)
    both = is_high.any(axis=1) & ~is_high.all(axis=1)
    if not both.any():
        return float("nan"), 0
    rewards, is_high = rewards[both], is_high[both]
    high = (rewards * is_high).sum(axis=1) / is_high.sum(axis=1)
    low = (rewards * ~is_high).sum(axis=1) / (~is_high).sum(axis=1)
    return (high - low).mean(), len(rewards)


def _phase(path: Path, columns: Sequence[str], phase: str, share: float) -> pd.DataFrame:
    """The rows of all steps of training, or of their first or last share."""
    table = pd.read_csv(path)
    lacking = [column for column in ("step", *columns) if column not in table]
    if lacking:
        raise Missing(f"{path.name} of {path.parent.name} has no {', '.join(lacking)}")
    steps = sorted(table["step"].unique())
    count = max(1, round(share * len(steps)))
    kept = {"all": steps, "early": steps[:count], "late": steps[-count:]}[phase]
    return table[table["step"].isin(kept)]


def _common(contrast: Mapping, by_key) -> tuple[int, ...]:
    """The seeds that all of a contrast's keys have."""
    seeds = set.intersection(*(set(map(int, found)) for found in by_key))
    if not seeds:
        raise Missing(f"no seed has all of {', '.join(contrast)}")
    return tuple(sorted(seeds))


def _mapped(function, estimate: Estimate) -> Estimate:
    return Estimate(*(float(function(x)) for x in estimate[:3]), *estimate[3:])
