"""RC-GRPO's Table 1 from per-item records, with the published rows beside the measured ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd

from rc_lib.arms import main_token
from rc_lib.config import ALL_ARMS
from rc_lib.published import MODELS, published
from rc_lib.records import DECODINGS, TOKENS, seed_item_matrix
from rc_lib.stats import (
    arm_interval,
    cluster_of,
    crossed_bootstrap,
    detectable_by_se,
    detectable_difference,
    holm,
    mcnemar,
    smallest_significant_difference,
    wilson,
)
from rc_lib.tasks.base import CATEGORIES

# Table 1's arms by their names in the paper.
METHODS = {
    "base": "base",
    "sft_grpo": "SFT+GRPO",
    "sft_rc_grpo": "SFT+RC-GRPO",
    "rctp_grpo": "RCTP-FT+GRPO",
    "rctp_rc_grpo": "RCTP-FT+RC-GRPO",
}
# The token that Table 1 shows: high where the last training stage used tokens, else none.
MAIN_TOKEN = {arm: main_token(arm) for arm in ALL_ARMS}
MAIN_DECODING = "greedy"
# First arm minus second; the name says where the paper prints the difference.
COMPARISONS = {
    "RC added at the RCTP-FT start (Table 2)": ("rctp_rc_grpo", "rctp_grpo"),
    "RC added at the SFT start (Table 3A)": ("sft_rc_grpo", "sft_grpo"),
    "RCTP-FT instead of SFT, under RC-GRPO (Table 3B)": ("rctp_rc_grpo", "sft_rc_grpo"),
    "RCTP-FT instead of SFT, under GRPO": ("rctp_grpo", "sft_grpo"),
    "RCTP-FT and RC together": ("rctp_rc_grpo", "sft_grpo"),
}


def table1(per_item: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """Return RC-GRPO's Table 1: five measured arms, then every published row.

    Source: RC-GRPO (arXiv 2602.03025), Table 1.

    Deviation: the paper gives one number a cell; here seeds and tasks are both counted as chance.
    It states no evaluation token; `MAIN_TOKEN` is shown, `table1_tokens` has the others.

    Args:
        per_item: `records.read_records` of one profile.
        seeds: seeds that should be there; missing ones are named in the row.

    Returns:
        One row an arm or published row. Accuracies in %, with ``_low`` and ``_high`` of a 95 %
        interval: `arm_interval` for measured arms, Wilson for published rows. Unknown is nan.
    """
    labels = {"source": "measured", **per_item[["profile", "model"]].iloc[0]}
    main = main_rows(per_item)
    rows = [labels | _measured_row(main, arm, seeds) for arm in METHODS]
    cells = published("rc_grpo_table1")
    for (model, method), group in cells.groupby(["model", "method"], sort=False):
        row = {"source": "published", "model": model, "method": method}
        row |= dict(zip(group["metric"], group["value"], strict=True))
        overall = group.set_index("metric").loc["overall"]
        bounds = wilson(overall["k"], overall["n"])
        row |= {"n": overall["n"], "mark": overall["mark"]}
        row |= {f"overall_{end}": 100 * bound for end, bound in bounds._asdict().items()}
        rows.append(row)
    columns = ["source", "profile", "model", "method", "token", "seeds", "missing_seeds", "n"]
    columns += [c for x in ("overall", *CATEGORIES) for c in _with_interval(x)]
    columns += [c for x in ("power", "unseen_wording") for c in (f"{x}_n", *_with_interval(x))]
    return _tidy(pd.DataFrame(rows, columns=[*columns, "mark"]))


def table1_tokens(per_item: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """Return every arm under every token and decoding on every test set, in long form.

    Args:
        per_item: `records.read_records` of one profile.
        seeds: seeds that should be there; a cell without records has ``seeds`` 0 and blanks.

    Returns:
        One row an (arm, test set, decoding, token): ``accuracy`` in % with its interval, and the
        means of the reward's parts and of the official and strict verdicts.
    """
    rows, cells = [], dict(iter(per_item.groupby(["arm", "test_set", "decoding", "token"])))
    for key in product(ALL_ARMS, per_item["test_set"].unique(), DECODINGS, TOKENS):
        chosen = cells.get(key, per_item.iloc[:0])
        row = dict(zip(["arm", "test_set", "decoding", "token"], key, strict=True))
        row |= _seeds(chosen, seeds) | {"n": chosen["item_id"].nunique()}
        row |= _accuracy(chosen, "accuracy")
        parts = ("r_state", "r_action", "official", "strict")
        rows.append(row | {part: 100 * chosen[part].mean() for part in parts})
    return _tidy(pd.DataFrame(rows))


def table1_mcnemar(per_item: pd.DataFrame) -> pd.DataFrame:
    """Return exact McNemar tests of the paper's comparisons, seed by seed.

    Args:
        per_item: `records.read_records` of one profile.

    Returns:
        One row a (test set, comparison, seed) that both arms have: ``difference`` in points, ``b``
        (right only first) and ``c`` (right only second), ``p``, and ``p_holm`` over the comparisons
        of one test set and seed.
    """
    rows, main = [], main_rows(per_item)
    for test_set, (name, arms) in product(per_item["test_set"].unique(), COMPARISONS.items()):
        first, second = _paired(main, arms, test_set)
        for seed in first.index:
            test = mcnemar(first.loc[seed], second.loc[seed])
            difference = 100 * (test.b - test.c) / first.shape[1]
            row = {"test_set": test_set, "comparison": name, "seed": seed, "n": first.shape[1]}
            rows.append(row | {"difference": difference} | test._asdict())
    names = ["test_set", "comparison", "seed", "n", "difference", "b", "c", "p"]
    table = pd.DataFrame(rows, columns=names)
    return _tidy(_add_holm(table, ["test_set", "seed"]))


def table1_pairs(per_item: pd.DataFrame, seeds: Sequence[int]) -> pd.DataFrame:
    """Return the paper's comparisons of two arms over all seeds, beside the published differences.

    Args:
        per_item: `records.read_records` of one profile.
        seeds: seeds that should be there.

    Returns:
        One row a (test set, comparison): ``difference`` in points with the interval and two-sided
        p of a crossed bootstrap of paired differences; ``p_holm`` over the comparisons of a test
        set; ``detectable`` points at power 0.8 given this row's standard error; ``discordant``, the
        mean share of tasks on which the arms differ; ``mcnemar_significant``, the number of seeds
        with Holm-adjusted p <= 0.05; and the published difference of each model.
    """
    rows, main, tests = [], main_rows(per_item), table1_mcnemar(per_item)
    for test_set, (name, arms) in product(per_item["test_set"].unique(), COMPARISONS.items()):
        first, second = _paired(main, arms, test_set)
        row = {"test_set": test_set, "comparison": name} | _seeds(first.reset_index(), seeds)
        mine = tests[(tests["test_set"] == test_set) & (tests["comparison"] == name)]
        if len(first):
            clusters = [cluster_of(item) for item in first.columns]
            result = crossed_bootstrap(first - second, clusters)
            row |= {"n": first.shape[1], "difference": 100 * result.mean, "low": 100 * result.low}
            row |= {"high": 100 * result.high, "p": result.p}
            row |= {"detectable": 100 * detectable_by_se(result.se)}
            row |= {"discordant": ((mine["b"] + mine["c"]) / mine["n"]).mean()}
        row["mcnemar_significant"] = int((mine["p_holm"] <= 0.05).sum())
        row |= {f"published_{m}": _published_difference(MODELS[m], arms) for m in MODELS}
        rows.append(row)
    names = ["test_set", "comparison", "seeds", "missing_seeds", "n", "difference", "low", "high"]
    names += ["p", "detectable", "discordant", "mcnemar_significant"]
    table = pd.DataFrame(rows, columns=names + [f"published_{m}" for m in MODELS])
    return _tidy(_add_holm(table, ["test_set"]))


def power_statement(pairs: pd.DataFrame, test_set: str) -> str:
    """Return one sentence on the smallest differences that a test set can show.

    Args:
        pairs: `table1_pairs`.
        test_set: a test set in it.
    """
    rows = pairs[(pairs["test_set"] == test_set) & pairs["n"].notna()]
    if rows.empty:
        return f"No pair of arms has been tested on {test_set} yet."
    n, seeds = int(rows["n"].iloc[0]), int(rows["seeds"].max())
    discordant = float(rows["discordant"].mean())
    smallest = _points(smallest_significant_difference(n))
    needed = _points(detectable_difference(n, discordant)) if discordant > 0 else "none"
    over = f"over {seeds} seeds" if seeds > 1 else "over the one seed"
    return (
        f"Smallest differences that {test_set} (n = {n}) can show. One seed, exact McNemar at the "
        f"0.05 level: {smallest} at best; {needed} with power 0.8 at the measured share of "
        f"discordant tasks ({discordant:.2f}). Paired bootstrap {over}, power 0.8: "
        f"{rows['detectable'].median():.1f} points (median of the comparisons)."
    )


def main_rows(per_item: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that Table 1 shows: greedy, each arm under its `MAIN_TOKEN`."""
    is_main = per_item["token"] == per_item["arm"].map(MAIN_TOKEN)
    return per_item[is_main & (per_item["decoding"] == MAIN_DECODING)]


def select(rows: pd.DataFrame, arm: str, test_set: str) -> pd.DataFrame:
    """Return an arm's rows on a test set."""
    return rows[(rows["arm"] == arm) & (rows["test_set"] == test_set)]


def missing_words(found: int, missing: str) -> str:
    """Return how many seeds a row has, for a reader.

    >>> missing_words(5, ""), missing_words(3, "3 4")
    ('5', '3 of 5 (missing 3 4)')
    """
    return (
        f"{found} of {found + len(missing.split())} (missing {missing})" if missing else f"{found}"
    )


def _measured_row(main: pd.DataFrame, arm: str, seeds: Sequence[int]) -> dict:
    chosen = select(main, arm, "test")
    row = {"method": METHODS[arm], "token": MAIN_TOKEN[arm]}
    row |= _seeds(chosen, seeds) | {"n": chosen["item_id"].nunique()} | _accuracy(chosen, "overall")
    for category in CATEGORIES:
        row |= _accuracy(chosen[chosen["category"] == category], category)
    for test_set in ("power", "unseen_wording"):
        other = select(main, arm, test_set)
        if len(other) and set(other["seed"]) != set(chosen["seed"]):
            raise ValueError(
                f"{arm}: seeds {sorted(set(chosen['seed']))} on test but "
                f"{sorted(set(other['seed']))} on {test_set}; evaluate them on every test set"
            )
        row |= {f"{test_set}_n": other["item_id"].nunique()} | _accuracy(other, test_set)
    return row


def _accuracy(chosen: pd.DataFrame, name: str) -> dict[str, float]:
    """Mean and interval in %, under a column name; nothing for no rows."""
    if chosen.empty:
        return {}
    values = seed_item_matrix(chosen)
    low, high = arm_interval(values, [cluster_of(item) for item in values.columns])
    mean = values.to_numpy().mean()
    return {name: 100 * mean, f"{name}_low": 100 * low, f"{name}_high": 100 * high}


def _seeds(chosen: pd.DataFrame, seeds: Iterable[int]) -> dict:
    found = set(chosen["seed"])
    missing = " ".join(str(seed) for seed in sorted(set(seeds) - found))
    return {"seeds": len(found), "missing_seeds": missing}


def _paired(main: pd.DataFrame, arms: tuple[str, str], test_set: str):
    """Two matrices of the seeds that both arms have, on the same items in the same order."""
    chosen = [select(main, arm, test_set) for arm in arms]
    both = set(chosen[0]["seed"]) & set(chosen[1]["seed"])
    first, second = (seed_item_matrix(rows[rows["seed"].isin(both)]) for rows in chosen)
    if set(first.columns) != set(second.columns):
        raise ValueError(
            f"{arms[0]} and {arms[1]} were tested on different items of {test_set}; evaluate again"
        )
    return first, second[first.columns]


def _published_difference(model: str, arms: tuple[str, str]) -> float:
    cells = published("rc_grpo_table1").query("metric == 'overall'").set_index(["model", "method"])
    first, second = (cells.loc[(model, METHODS[arm]), "value"] for arm in arms)
    return first - second


def _add_holm(table: pd.DataFrame, family: list[str]) -> pd.DataFrame:
    table.insert(table.columns.get_loc("p") + 1, "p_holm", np.nan)
    for _, group in table[table["p"].notna()].groupby(family):
        table.loc[group.index, "p_holm"] = holm(group["p"])
    return table


def _with_interval(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"


def _points(share: float) -> str:
    return "none" if np.isnan(share) else f"{100 * share:.1f} points"


def _tidy(table: pd.DataFrame) -> pd.DataFrame:
    """Round p-values and shares to 6 digits and percentages to 2, so that files repeat; counts as
    whole numbers."""
    fine = {"p", "p_holm", "discordant"}
    whole = {"seeds", "n", "power_n", "unseen_wording_n", "seed", "b", "c", "mcnemar_significant"}
    for column in table.select_dtypes("number"):
        if column in whole:
            table[column] = table[column].astype("Int64")
        else:
            table[column] = table[column].astype(float).round(6 if column in fine else 2)
    return table
