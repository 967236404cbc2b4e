"""RC-GRPO's Tables 2, 3A and 3B from the records: two arms and their paired difference."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pandas as pd

from rc_lib.arms import rl_arm
from rc_lib.config import get_profile
from rc_lib.entropy_reward import bracketed, seed_words, sources
from rc_lib.published import MODELS, published
from rc_lib.records import TOKENS, seed_item_matrix
from rc_lib.stats import (
    POWER,
    arm_interval,
    cluster_of,
    crossed_bootstrap,
    detectable_by_se,
    mcnemar,
    wilson,
)
from rc_lib.table1 import COMPARISONS, MAIN_DECODING, MAIN_TOKEN, METHODS, select
from rc_lib.tables import formatted


class Contrast(NamedTuple):
    """A published table of two arms: its comparisons in `table1.COMPARISONS`, and their cells.

    `old` and `new` head the columns of the second and of the first arm of a comparison;
    `comparisons` gives the file of published cells of each.
    """

    old: str
    new: str
    comparisons: dict[str, str]


CONTRASTS = {
    "table2_rc_at_rctp_start": Contrast(
        "GRPO", "RC-GRPO", {"RC added at the RCTP-FT start (Table 2)": "rc_grpo_table2"}
    ),
    "table3a_rc_at_sft_start": Contrast(
        "GRPO", "RC-GRPO", {"RC added at the SFT start (Table 3A)": "rc_grpo_table3a"}
    ),
    "table3b_rctp_start": Contrast(
        "SFT start",
        "RCTP-FT start",
        {
            "RCTP-FT instead of SFT, under RC-GRPO (Table 3B)": "rc_grpo_table3b",
            "RCTP-FT instead of SFT, under GRPO": "rc_grpo_table1",
        },
    ),
}
PERCENT = [f"{name}{end}" for name in ("old", "new") for end in ("", "_low", "_high")]


def contrast_table(
    contrast: Contrast, per_item: pd.DataFrame, pairs: pd.DataFrame, seeds: Sequence[int]
) -> pd.DataFrame:
    """Return two arms beside each other with their paired difference, after the published rows.

    Source: RC-GRPO (arXiv 2602.03025), Tables 2, 3A and 3B.

    Args:
        contrast: one of `CONTRASTS`.
        per_item: `records.read_records` of one profile.
        pairs: `table1.table1_pairs` of it.
        seeds: seeds that should be there.

    Returns:
        One row a comparison and model (published), or a comparison, token of the arms trained with
        tokens, and test set: greedy accuracies ``old`` and ``new`` in % with ``_low`` and ``_high``
        (Wilson; measured: `arm_interval`, on the seeds that both arms have), and ``difference`` in
        points with the interval and two-sided ``p`` of a crossed bootstrap of paired differences;
        ``p_holm`` of `table1.table1_pairs` in the rows of Table 1's token; ``detectable`` points at
        power 0.8; and ``discordant``, the tasks right only in the new / only in the old arm, seed
        by seed.

    Raises:
        ValueError: for two arms that were tested on different items.
    """
    rows = []
    for words, file in contrast.comparisons.items():
        rows += _published_rows(words, file)
        new, old = COMPARISONS[words]
        tokens = TOKENS if rl_arm(new).conditioning != "none" else ("none",)
        for token, test_set in product(tokens, per_item["test_set"].unique()):
            rows.append(_measured_row(per_item, words, (new, old), token, test_set, seeds))
    adjusted = pairs.set_index(["test_set", "comparison"])["p_holm"]
    for row in rows:
        if row.get("token") == MAIN_TOKEN[COMPARISONS[row["comparison"]][0]]:
            row["p_holm"] = adjusted[row["test_set"], row["comparison"]]
    names = ["source", "profile", "model", "comparison", "test_set", "token", "seeds"]
    names += ["missing_seeds", "n", *PERCENT, "difference", "difference_low", "difference_high"]
    table = pd.DataFrame(rows, columns=[*names, "p", "p_holm", "detectable", "discordant", "mark"])
    points = [*PERCENT, "difference", "difference_low", "difference_high", "detectable"]
    table[points] = table[points].astype(float)
    return table.round(dict.fromkeys(points, 2) | {"p": 6}).astype({"seeds": "Int64", "n": "Int64"})


def show_contrast(contrast: Contrast, table: pd.DataFrame) -> pd.DataFrame:
    """Return `contrast_table` as a reader sees it."""
    shown = pd.DataFrame({"Source": sources(table), "Model": table["model"]})
    if len(contrast.comparisons) > 1:
        shown["Under"] = table["comparison"].str.partition("under ")[2]
    shown["Test set"], shown["n"] = table["test_set"], table["n"]
    shown["Token"] = table["token"]
    shown["Seeds"] = [seed_words(row) for row in table.itertuples()]
    shown[f"{contrast.old} (%)"] = bracketed(table, "old", "{:.2f}")
    shown[f"{contrast.new} (%)"] = bracketed(table, "new", "{:.2f}")
    shown["Difference (points)"] = bracketed(table, "difference", "{:+.2f}")
    shown["p"], shown["p (Holm)"] = (formatted(table[name], "{:.4f}") for name in ("p", "p_holm"))
    shown["Detectable (points)"] = formatted(table["detectable"], "{:.1f}")
    shown["b/c by seed"] = table["discordant"]
    return shown


def contrast_notes(contrast: Contrast, table: pd.DataFrame) -> list[str]:
    """Return the paragraphs under a table of `contrast_table`."""
    here = table[table["source"] == "measured"].iloc[0]
    tune = get_profile(here["profile"]).fine_tune
    confounds = {
        "GRPO": "Both arms start from one policy and draw equally many rollouts a step here. The "
        "paper's batches are 256 for RC-GRPO and 64 for GRPO, so its difference may have another "
        "cause as well.",
        "SFT start": f"RCTP-FT makes {2 * tune.rctp_epochs / tune.sft_epochs:g} times the row "
        "updates of SFT here (5 times in the paper), so the difference is not that of the data "
        "alone. The comparison under GRPO is no part of the paper's Table 3B; its published cells "
        "are those of Table 1.",
    }
    return [
        f"Measured at profile {here['profile']} (model {here['model']}), greedy decoding. In "
        "brackets the 95 % interval: crossed bootstrap over seeds and tasks (Wilson where an arm "
        "is right on all tasks or on none), of differences paired by seed and task; with one seed "
        "over tasks alone. Published rows: Wilson; how their arms pair is not published, so the "
        "differences have no interval (audit_reach says what p can be).",
        "Published rows (arXiv 2602.03025) are of other models on other tasks: levels do not "
        "compare, differences may. Marks: [B] several secondary readings agree, [D] derived by "
        "arithmetic from other cells. Blank: not known.",
        "Token: in the prompts of arms that were trained with tokens; the other arms are tested "
        "without. The paper does not state its own. Table 1 shows high; p (Holm) is over its five "
        "comparisons of a test set, and the other tokens stand outside that family.",
        f"Detectable: the true difference found at the 5 % level with power {POWER:g}, given this "
        f"row's standard error. b/c: tasks right only in {contrast.new}, and only in "
        f"{contrast.old}.",
        confounds[contrast.old],
    ]


def _published_rows(words: str, file: str) -> list[dict]:
    cells, rows = published(file).query("metric == 'overall'"), []
    for model in MODELS.values():
        row = {"source": "published", "model": model, "comparison": words}
        mine = cells[cells["model"] == model].set_index("method")
        for name, arm in zip(("new", "old"), COMPARISONS[words], strict=True):
            cell = mine.loc[METHODS[arm]]
            bounds = wilson(cell["k"], cell["n"])
            row |= {name: cell["value"], "n": cell["n"], "mark": cell["mark"]}
            row |= {f"{name}_{end}": 100 * x for end, x in bounds._asdict().items()}
        rows.append(row | {"difference": row["new"] - row["old"]})
    return rows


def _measured_row(per_item, words, arms, token, test_set, seeds) -> dict:
    """Both arms on the seeds that both have and the same items; differences are new less old."""
    under = {arm: token if rl_arm(arm).conditioning != "none" else "none" for arm in arms}
    chosen = per_item[per_item["token"] == per_item["arm"].map(under)]
    chosen = [select(chosen[chosen["decoding"] == MAIN_DECODING], arm, test_set) for arm in arms]
    both = set(chosen[0]["seed"]) & set(chosen[1]["seed"])
    row = {"source": "measured", **per_item[["profile", "model"]].iloc[0]}
    row |= {"comparison": words, "test_set": test_set, "token": token}
    missing = " ".join(str(seed) for seed in sorted(set(seeds) - both))
    row |= {"seeds": len(both), "missing_seeds": missing}
    if not both:
        return row
    new, old = (seed_item_matrix(rows[rows["seed"].isin(both)]) for rows in chosen)
    if set(new.columns) != set(old.columns):
        raise ValueError(
            f"{arms[0]} and {arms[1]} were tested on different items of {test_set}; evaluate again"
        )
    old = old[new.columns]
    clusters = [cluster_of(item) for item in new.columns]
    for name, values in (("old", old), ("new", new)):
        ends = arm_interval(values, clusters)._asdict()
        row |= {name: 100 * values.to_numpy().mean()}
        row |= {f"{name}_{end}": 100 * x for end, x in ends.items()}
    result = crossed_bootstrap(new - old, clusters)
    row |= {"n": new.shape[1], "difference": 100 * result.mean, "p": result.p}
    row |= {"difference_low": 100 * result.low, "difference_high": 100 * result.high}
    # Arms that are right on the same tasks say nothing about the noise of others.
    row["detectable"] = 100 * detectable_by_se(result.se) if result.se else np.nan
    tests = [mcnemar(new.loc[seed], old.loc[seed]) for seed in new.index]
    return row | {"discordant": ", ".join(f"{test.b}/{test.c}" for test in tests)}
