"""RC-GRPO's Table 5 from the records: the last quarter of RL, and what its spread can be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from rc_lib.claims import rules
from rc_lib.config import get_profile
from rc_lib.entropy_reward import STARTS, bracketed, read_curves, seed_words, sources
from rc_lib.figures import INTERVAL_SEEDS
from rc_lib.published import published
from rc_lib.records import record_files
from rc_lib.stats import holm
from rc_lib.tables import formatted
from rc_lib.variance_records import group_arrays
from rc_lib.variance_tables import over_seeds

# The paper's batches of GRPO and RC-GRPO (64 and 256), read as rollouts, in groups of 5, rounded.
PAPER_GROUPS = {"GRPO": 13, "RC-GRPO": 51}
# Columns of curve.csv: name in the published table, and for a reader.
QUANTITIES = {
    "advantage_spread": "advantage spread: max - min over a step",
    "advantage_spread_group": "advantage spread: max - min in a group, mean over groups",
    "kl": "KL to the start (nats a token)",
    "grad_norm": "gradient norm before clipping",
    "entropy": "entropy (nats a token)",
}
EXPECTED = {
    f"spread_of_{count}": f"advantage spread over {count} groups, expected"
    for count in PAPER_GROUPS.values()
}
BOTH = {"old": "GRPO", "new": "RC-GRPO"}


def spread_bounds(group_size: int) -> dict[str, float]:
    """Return the largest advantages and spreads that groups of one size can have.

    All are for A = (R - mu_g) / sigma_g with the population sigma_g, eps_stab = 0. Source: derived;
    the definition of "advantage spread" in RC-GRPO's Table 5 is not known here.

    Args:
        group_size: G >= 2.

    Returns:
        ``one``: of |A|, sqrt(G - 1), by one success or one failure. ``group_binary``: of max - min
        in a group of rewards 0 and 1, G / sqrt(G - 1), by the same groups. ``group``: the same for
        any rewards, sqrt(2 G), by two that lie equally far on either side of G - 2 equal ones (for
        odd G rewards of 0 and 1 do not reach it). ``batch``: of max - min over several groups,
        2 sqrt(G - 1), by one group with one success and one with one failure.

    >>> {name: round(bound, 2) for name, bound in spread_bounds(5).items()}
    {'one': 2.0, 'group_binary': 2.5, 'group': 3.16, 'batch': 4.0}
    """
    one = np.sqrt(group_size - 1)
    return {
        "one": float(one),
        "group_binary": float(group_size / one),
        "group": float(np.sqrt(2 * group_size)),
        "batch": float(2 * one),
    }


def expected_spread(successes: np.ndarray, group_size: int, count: int) -> float:
    """Return the expected max - min of the advantages of `count` groups drawn from recorded ones.

    Groups are drawn with replacement, so P(largest of `count` <= a) is P(a group's <= a)^count.

    Args:
        successes: int [N], successes of each recorded group, 0 to G.
        group_size: G.
        count: groups to draw, >= 1.

    >>> expected_spread(np.array([1, 4]), 5, 1), expected_spread(np.array([1, 4]), 5, 2)
    (2.5, 3.25)
    """
    share = np.bincount(successes, minlength=group_size + 1) / len(successes)
    return sum(_expected_largest(values, share, count) for values in _levels(group_size))


def step_spreads(group_size: int) -> list[float]:
    """Return every max - min of the advantages that a step of rewards 0 and 1 can have.

    The largest advantage comes from the group with the fewest successes of those with spread, the
    smallest from the one with the most.

    >>> [round(spread, 2) for spread in step_spreads(5)]
    [0.0, 2.04, 2.45, 2.5, 2.82, 3.22, 4.0]
    """
    highest, lowest = _levels(group_size)
    pairs = [(few, most) for most in range(1, group_size) for few in range(1, most + 1)]
    return sorted({0.0, *(round(float(highest[few] + lowest[most]), 12) for few, most in pairs)})


def late_values(
    records_root: Path, profile: str, seeds: Sequence[int]
) -> tuple[pd.DataFrame, range]:
    """Return the quantities of Table 5 for each arm and seed, and the late steps.

    Late is the last ``phase_share`` of the steps, as in ``claims.toml``.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/curve.csv`` and ``groups.csv``.
        profile: of the records; its group size is used.
        seeds: seeds to look for.

    Returns:
        One row an arm and seed: ``arm``, ``seed``, means over the late steps of the columns
        `QUANTITIES`, and of `EXPECTED` the `expected_spread` of the late groups; and the steps.

    Raises:
        FileNotFoundError: if there is not one curve, or an arm with a curve has no groups.
        ValueError: for a damaged curve, or groups of another size than the profile's.
    """
    curves = read_curves(records_root, seeds, list(QUANTITIES))
    steps = sorted(curves["step"].unique())
    steps = steps[-max(1, round(rules()[0]["phase_share"] * len(steps))) :]
    late = curves[curves["step"].isin(steps)]
    values = late.groupby(["arm", "seed"], sort=False)[list(QUANTITIES)].mean().reset_index()
    size, files = (
        get_profile(profile).rl.group_size,
        record_files(records_root, "groups.csv", seeds),
    )
    places = list(zip(values["arm"], values["seed"], strict=True))
    if missing := [f"{arm} of seed {seed}" for arm, seed in places if (arm, seed) not in files]:
        raise FileNotFoundError(
            f"no groups.csv of {', '.join(missing)} under {records_root}; "
            "run notebook 11_stage2_rc_grpo for it"
        )
    successes = [_successes(files[place], steps, size) for place in places]
    for name, count in zip(EXPECTED, PAPER_GROUPS.values(), strict=True):
        values[name] = [expected_spread(counts, size, count) for counts in successes]
    return values, range(int(steps[0]), int(steps[-1]) + 1)


def table5(values: pd.DataFrame, profile: str, seeds: Sequence[int]) -> pd.DataFrame:
    """Return RC-GRPO's Table 5: GRPO beside RC-GRPO late in training, from each start.

    Source: RC-GRPO (arXiv 2602.03025), Table 5, of which one cell is known here.

    Deviation: how the paper defines its late phase and its advantage spread is not known here. Late
    is the last quarter of the steps; the spread is given over a step and in a group.

    Args:
        values: of `late_values`.
        profile: of the records.
        seeds: seeds that should be there.

    Returns:
        The published rows, then one row a start and quantity: ``old`` (GRPO) and ``new`` (RC-GRPO)
        and ``difference`` (paired by seed, on the seeds that both have), each with a Student
        interval over seeds, ``_low`` to ``_high``, and the paired t-test's ``p`` and ``p_holm``
        over `QUANTITIES` of both starts. Intervals and p are blank below `INTERVAL_SEEDS` seeds.
    """
    rows = []
    for quantity, cells in published("rc_grpo_table5").groupby("metric", sort=False):
        cells = cells.set_index("method")
        row = {"source": "published", "quantity": quantity.removeprefix("late-phase ")}
        row |= {end: cells.loc[method, "value"] for end, method in BOTH.items()}
        rows.append(row | {"mark": cells["mark"].dropna().min()})
    labels = {"source": "measured", "profile": profile, "model": get_profile(profile).model}
    for start, arms in STARTS.items():
        new, old = (values[values["arm"] == arm].set_index("seed") for arm in arms)
        both = new.index.intersection(old.index)
        missing = " ".join(str(seed) for seed in sorted(set(seeds) - set(both)))
        found = labels | {"start": start, "seeds": len(both), "missing_seeds": missing}
        for name, words in (QUANTITIES | EXPECTED).items():
            pair = pd.DataFrame({"old": old.loc[both, name], "new": new.loc[both, name]})
            rows.append(found | {"quantity": words} | (_paired(pair) if len(pair) else {}))
            if name in EXPECTED:  # made from the same groups as the spreads: no test of its own
                rows[-1].pop("p", None)
    numbers = [f"{name}{end}" for name in (*BOTH, "difference") for end in ("", "_low", "_high")]
    names = ["source", "profile", "model", "start", "quantity", "seeds", "missing_seeds", *numbers]
    table = pd.DataFrame(rows, columns=[*names, "by_seed", "p", "p_holm", "mark"])
    known = table["p"].notna()
    if known.any():
        table.loc[known, "p_holm"] = holm(table.loc[known, "p"])
    return table.round(6).astype({"seeds": "Int64"})


def show_table5(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table5` as a reader sees it."""
    shown = pd.DataFrame({"Source": sources(table), "Start": table["start"]})
    shown["Late in training"] = table["quantity"]
    shown["Seeds"] = [seed_words(row) for row in table.itertuples()]
    for name, method in BOTH.items():
        shown[method] = bracketed(table, name, "{:.3f}")
    shown["RC-GRPO less GRPO"] = bracketed(table, "difference", "{:+.3f}")
    shown["RC-GRPO less GRPO, by seed"] = table["by_seed"]
    shown["p"], shown["p (Holm)"] = (formatted(table[name], "{:.4f}") for name in ("p", "p_holm"))
    return shown


def table5_notes(table: pd.DataFrame, profile: str, steps: range) -> list[str]:
    """Return the paragraphs under Table 5: what was measured, and what its spreads can be."""
    rl = get_profile(profile).rl
    size, bounds = rl.group_size, spread_bounds(rl.group_size)
    return [
        f"Profile {profile}, steps {steps[0]} to {steps[-1]} of 0 to {rl.steps - 1}, "
        f"{rl.prompts_per_step} groups a step. A cell: mean over these steps, then over seeds, "
        "with its 95 % Student interval. A seed counts as one observation, so steps are not taken "
        "for independent. Differences: paired by seed, with the t-test's p and Holm's over all "
        f"rows that have one. Intervals and p: from {INTERVAL_SEEDS} seeds on.",
        "RC-GRPO's KL and entropy come from rollouts under its own tokens, half of them low on "
        "average, GRPO's from rollouts without a token. The gradient norm includes the KL term and "
        "the noise of the batch.",
        f"What a spread can be (G = {size}, population sigma): |A| at most sqrt(G - 1) = "
        f"{bounds['one']:.2f}; max - min in a group at most G / sqrt(G - 1) = "
        f"{bounds['group_binary']:.2f} for rewards of 0 and 1, sqrt(2 G) = {bounds['group']:.2f} "
        f"for any rewards; max - min over a step at most 2 sqrt(G - 1) = {bounds['batch']:.2f}; "
        "the standard deviation of a step's advantages at most 1. With the sample's sigma all are "
        "smaller. A step with a group of one success and a group of one failure has the largest "
        "max - min; where most steps do, it says little, and a Student interval can end above it.",
        *_published_words(size, bounds),
        *_batch_words(table),
    ]


def _published_words(size: int, bounds: dict[str, float]) -> list[str]:
    cells = published("rc_grpo_table5").query("metric == 'late-phase advantage spread'")
    value = cells.set_index("method").loc["RC-GRPO", "value"]
    words = [
        "Published (arXiv 2602.03025, Table 5): one cell is known here, RC-GRPO's advantage spread "
        f"of {value:.2f} [C: one secondary source], without its model, start and definition. All "
        "others stay blank."
    ]
    if bounds["group"] < value <= bounds["batch"]:
        spreads = np.array(step_spreads(size))
        below, above = spreads[spreads <= value].max(), spreads[spreads >= value].min()
        words.append(
            f"A spread of {value:.2f} is too large for a group of {size} and for a standard "
            "deviation, whatever the rewards: if the cell is right, it is a max - min over several "
            f"groups. One step of rewards 0 and 1 has {below:.2f} or {above:.2f}, nothing between, "
            "so it would be a mean of several steps."
        )
    return words


def _batch_words(table: pd.DataFrame) -> list[str]:
    """What the paper's unequal batches do to a spread over a step, by themselves."""
    few, many = PAPER_GROUPS.values()
    cells, found = table.set_index(["start", "quantity"])["old"], []
    for start in STARTS:
        ends = [cells.get((start, EXPECTED[f"spread_of_{count}"])) for count in (few, many)]
        if pd.notna(ends).all():
            found.append(f"{ends[0]:.2f} at {few} groups and {ends[1]:.2f} at {many} ({start})")
    if not found:
        return []
    return [
        "A max - min over a step grows with the number of groups in it. Expected spread: of "
        "so many groups, drawn from those recorded in the late steps. The paper's batches "
        f"are 64 for GRPO and 256 for RC-GRPO; read as rollouts that is about {few} and {many} "
        f"groups, and one and the same GRPO policy here has {', '.join(found)}. So a larger batch "
        "alone widens a spread over a step."
    ]


def _successes(path: Path, steps: Sequence[int], size: int) -> np.ndarray:
    """Successes of each group of some steps."""
    groups = pd.read_csv(path, dtype={"rewards": str})
    rewards, _ = group_arrays(groups[groups["step"].isin(steps)])
    if rewards.shape[1] != size or not np.isin(rewards, (0, 1)).all():
        raise ValueError(
            f"{path}: groups of {rewards.shape[1]} rewards {sorted(set(rewards.flat))}; expected "
            f"{size} of 0 and 1, train the arm again"
        )
    return rewards.sum(axis=1).astype(int)


def _paired(pair: pd.DataFrame) -> dict:
    """Means of both arms and of their difference over seeds, and the paired t-test's p."""
    pair = pair.assign(difference=pair["new"] - pair["old"])
    row = over_seeds(pair.rename_axis("seed").reset_index().assign(row=""), ["row"]).iloc[0]
    cells = row.drop(["row", "seeds"]).to_dict()
    cells["by_seed"] = ", ".join(formatted(pair["difference"].round(3) + 0.0, "{:+.3f}"))
    deviation = pair["difference"].std(ddof=1) if len(pair) >= INTERVAL_SEEDS else 0.0
    if deviation > 0:
        t = abs(cells["difference"]) / (deviation / np.sqrt(len(pair)))
        cells["p"] = 2 * student.sf(t, len(pair) - 1)
    return cells


def _levels(group_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest advantage and largest -advantage of a group with 0 to G successes."""
    k, levels = np.arange(1, group_size), np.zeros((2, group_size + 1))
    levels[:, 1:-1] = np.sqrt((group_size - k) / k), np.sqrt(k / (group_size - k))
    return levels[0], levels[1]


def _expected_largest(values: np.ndarray, share: np.ndarray, count: int) -> float:
    """E of the largest of `count` draws of values with the given probabilities."""
    order = np.argsort(values, kind="stable")
    below = np.minimum(np.cumsum(share[order]), 1.0) ** count
    return float(values[order] @ np.diff(below, prepend=0.0))
