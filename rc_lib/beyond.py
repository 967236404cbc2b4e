"""The arms that RC-GRPO lacks, at equal budgets: their accuracy and the declared comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from rc_lib.arms import RL_ARMS, SHORT, STARTS, main_token
from rc_lib.beyond_training import LATE_COLUMNS
from rc_lib.figures import INTERVAL_SEEDS
from rc_lib.records import TOKENS, seed_item_matrix
from rc_lib.stats import arm_interval, cluster_of, crossed_bootstrap, detectable_by_se, holm
from rc_lib.table1 import select
from rc_lib.variance_tables import over_seeds

ROWS = STARTS | RL_ARMS


class Comparison(NamedTuple):
    """A declared comparison: its question, its words, and the arms, first minus second."""

    question: str
    words: str
    first: str
    second: str


# All that are tested, declared before the records: one family of tests for each test set.
COMPARISONS = tuple(
    Comparison(*row)
    for row in (
        ("budget", "long SFT for SFT", "sft_equal", "sft"),
        ("budget", "long SFT for SFT, then GRPO", "sft_equal_grpo", "sft_grpo"),
        ("budget", "long SFT for SFT, then RC-GRPO", "sft_equal_rc_grpo", "sft_rc_grpo"),
        ("budget", "RCTP-FT for long SFT, then GRPO", "rctp_grpo", "sft_equal_grpo"),
        ("budget", "RCTP-FT for long SFT, then RC-GRPO", "rctp_rc_grpo", "sft_equal_rc_grpo"),
        ("budget", "RCTP-FT, RC-GRPO for long SFT, GRPO", "rctp_rc_grpo", "sft_equal_grpo"),
        ("budget", "a quarter of the prompts, SFT+GRPO", "sft_grpo_quarter", "sft_grpo"),
        ("budget", "a quarter of the prompts, RCTP-FT+GRPO", "rctp_grpo_quarter", "rctp_grpo"),
        ("budget", "RC-GRPO, GRPO at a quarter (the paper)", "rctp_rc_grpo", "rctp_grpo_quarter"),
        ("failures", "failures in RCTP-FT", "rctp", "rctp_success"),
        ("failures", "failures in RCTP-FT, then RC-GRPO", "rctp_rc_grpo", "success_rc_grpo"),
        ("style cue", "placeholder observations", "rctp_cue", "rctp"),
        ("style cue", "placeholder observations, then RC-GRPO", "cue_rc_grpo", "rctp_rc_grpo"),
        ("stratified", "stratified tokens for i.i.d.", "rctp_rc_stratified", "rctp_rc_grpo"),
        ("dynamic sampling", "in SFT+GRPO", "sft_grpo_dynamic", "sft_grpo"),
        ("dynamic sampling", "in RC-GRPO", "rctp_rc_grpo_dynamic", "rctp_rc_grpo"),
        ("temperature", "1.3 for 1, SFT+GRPO", "sft_grpo_hot", "sft_grpo"),
        ("entropy bonus", "in SFT+GRPO", "sft_grpo_entropy", "sft_grpo"),
        ("P(high)", "0 for 0.5", "rctp_rc_p000", "rctp_rc_grpo"),
        ("P(high)", "0.25 for 0.5", "rctp_rc_p025", "rctp_rc_grpo"),
        ("P(high)", "0.75 for 0.5", "rctp_rc_p075", "rctp_rc_grpo"),
        ("P(high)", "1 for 0.5", "rctp_rc_p100", "rctp_rc_grpo"),
        ("group size", "2 for 5", "rctp_rc_g2", "rctp_rc_grpo"),
        ("group size", "10 for 5", "rctp_rc_g10", "rctp_rc_grpo"),
    )
)  # fmt: skip


def arms_table(
    per_item: pd.DataFrame, training: pd.DataFrame, seeds: Sequence[int]
) -> pd.DataFrame:
    """Return accuracy, late variance and budget of every recorded start and arm of stage 2.

    Args:
        per_item: `records.read_records` of one profile.
        training: `training_statistics` of the same records.
        seeds: seeds that should be there.

    Returns:
        A row an arm: ``arm``, ``label``, ``token`` (`arms.main_token`), ``seeds``,
        ``missing_seeds``; for each set of `arms.SHORT` its greedy accuracy in % under that token
        with ``_low`` and ``_high`` (`arm_interval`), and ``<set>_under_<token>`` for all three;
        and means over seeds of `training_statistics`, with a Student interval for `LATE_COLUMNS`.
        Intervals are blank below `INTERVAL_SEEDS` seeds.

    Raises:
        ValueError: for an arm that was tested with other seeds than it was trained with.
    """
    greedy = per_item[per_item["decoding"] == "greedy"]
    means = over_seeds(training, ["arm"]).set_index("arm")
    wanted = [
        *training.columns[2:],
        *(f"{x}_{end}" for x in LATE_COLUMNS for end in ("low", "high")),
    ]
    rows = []
    for name, arm in ROWS.items():
        mine = greedy[greedy["arm"] == name]
        if mine.empty:
            continue
        found, trained = set(mine["seed"]), set(training.loc[training["arm"] == name, "seed"])
        if trained and trained != found:
            raise ValueError(
                f"{name}: tested with seeds {sorted(found)}, trained with {sorted(trained)}; "
                "let the run finish"
            )
        row = {"arm": name, "label": arm.label, "token": main_token(name), "seeds": len(found)}
        row["missing_seeds"] = " ".join(str(seed) for seed in sorted(set(seeds) - found))
        for test_set in SHORT.test_sets:
            row |= _accuracy(select(mine, name, test_set), test_set, row["token"])
        rows.append(row | (means.loc[name, wanted].to_dict() if trained else {}))
    return pd.DataFrame(rows).round(6)


def pairs_table(per_item: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """Return `COMPARISONS` on each set of `arms.SHORT`, as far as they are recorded.

    Args:
        per_item: `records.read_records` of one profile.
        seeds: seeds that should be there.

    Returns:
        A row a test set and comparison: ``difference`` in points, greedy, each arm under its
        `arms.main_token`, on the seeds that both arms have, and ``by_seed``, the same seed by seed.
        From `INTERVAL_SEEDS` common seeds on, the interval and two-sided ``p`` of a crossed
        bootstrap of the paired differences; ``p_holm`` over the declared family of the test set,
        in which a comparison without p counts as p = 1, so a later record can only lower the
        others; ``detectable``, the points found with power 0.8 at this row's standard error.

    Raises:
        ValueError: for two arms that were tested on different items.
    """
    token = per_item["arm"].map({arm: main_token(arm) for arm in per_item["arm"].unique()})
    main = per_item[(per_item["token"] == token) & (per_item["decoding"] == "greedy")]
    rows = []
    for test_set, comparison in product(SHORT.test_sets, COMPARISONS):
        difference = _paired(main, comparison, test_set)
        if difference.empty:
            continue
        row = {"test_set": test_set, **comparison._asdict(), "seeds": len(difference)}
        row["missing_seeds"] = " ".join(map(str, sorted(set(seeds) - set(difference.index))))
        row |= {"n": difference.shape[1], "difference": 100 * difference.to_numpy().mean()}
        row["by_seed"] = " ".join(f"{x:+.1f}" for x in 100 * difference.mean(axis=1))
        if len(difference) >= INTERVAL_SEEDS:
            result = crossed_bootstrap(difference, [cluster_of(x) for x in difference.columns])
            row |= {"low": 100 * result.low, "high": 100 * result.high, "p": result.p}
            # Arms that are right on the same tasks say nothing about the noise of others.
            row["detectable"] = 100 * detectable_by_se(result.se) if result.se else np.nan
        rows.append(row)
    names = ["test_set", *Comparison._fields, "seeds", "missing_seeds", "n", "difference"]
    table = pd.DataFrame(rows, columns=[*names, "by_seed", "low", "high", "p", "detectable"])
    table.insert(table.columns.get_loc("p") + 1, "p_holm", np.nan)
    for _, family in table[table["p"].notna()].groupby("test_set"):
        unmeasured = [1.0] * (len(COMPARISONS) - len(family))
        table.loc[family.index, "p_holm"] = holm([*family["p"], *unmeasured])[: len(family)]
    return table.round(6)


def _accuracy(rows: pd.DataFrame, test_set: str, token: str) -> dict[str, float]:
    """An arm's accuracy in % on a test set: under its token with interval, and under each."""
    values = seed_item_matrix(rows[rows["token"] == token])
    cells = {test_set: 100 * values.to_numpy().mean()}
    cells |= {f"{test_set}_{end}": np.nan for end in ("low", "high")}
    if len(values) >= INTERVAL_SEEDS:
        interval = arm_interval(values, [cluster_of(item) for item in values.columns])
        cells |= {f"{test_set}_{end}": 100 * x for end, x in interval._asdict().items()}
    under = 100 * rows.groupby("token")["correct"].mean()
    return cells | {f"{test_set}_under_{token}": under[token] for token in TOKENS}


def _paired(main: pd.DataFrame, comparison: Comparison, test_set: str) -> pd.DataFrame:
    """First minus second arm, seeds that both have by items."""
    chosen = [select(main, arm, test_set) for arm in (comparison.first, comparison.second)]
    both = set(chosen[0]["seed"]) & set(chosen[1]["seed"])
    first, second = (seed_item_matrix(rows[rows["seed"].isin(both)]) for rows in chosen)
    if set(first.columns) != set(second.columns):
        arms = f"{comparison.first} and {comparison.second}"
        raise ValueError(f"{arms} were tested on different items of {test_set}; evaluate again")
    return first - second[first.columns]
