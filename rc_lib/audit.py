"""The papers' numbers recomputed from their counts, and what 80 tasks can say about them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pandas as pd

from rc_lib import paths
from rc_lib.audit_icrl import icrl_notes, icrl_reach, icrl_rows, icrl_sums
from rc_lib.manifest import sha256
from rc_lib.published import MODELS, possible_count, published
from rc_lib.stats import ALPHA, POWER, mcnemar, mcnemar_power, wilson
from rc_lib.table1 import COMPARISONS, METHODS
from rc_lib.tables import formatted, write_table
from rc_lib.tasks.base import CATEGORIES

OURS = METHODS["rctp_rc_grpo"]
DISCORDANT = (0.2, 0.3, 0.4, 0.5)  # shares of tasks on which two arms differ; here about 0.25
GAIN = ("difference", "low", "high")
REACH_FORMATS = (
    {"difference": "{:+.2f}"}
    | dict.fromkeys(("p_best", "p_independent", "p_worst"), "{:.2g}")
    | {f"power_{share}": "{:.2f}" for share in DISCORDANT}
)
HEADINGS = {
    "value": "Printed (%)", "printed": "Printed (%)", "repaired": "Repaired (%)", "k": "k",
    "n": "n", "low": "Low", "high": "High", "taken_from": "Taken from", "sum_k": "Sum of k",
    "overall_k": "Overall k", "fitting": "Fitting", "k_first": "k, first", "k_second": "k, second",
    "difference": "Difference (points)", "p_best": "p, best pairing", "p_worst": "p, worst pairing",
    "p_independent": "p, independent", "discordant_limit": "Discordant tasks, at most",
    "tasks_needed": "Tasks needed", "average": "Average (%)", "not_fitting": "Not fitting",
} | {f"power_{share}": f"Power at {share}" for share in DISCORDANT}  # fmt: skip
REPAIR_NOTE = (
    "All permutations of a row's four printed category cells were tried; fitting is the number "
    "after which every cell is a count of its category's tasks. The overall scores stand. Mark D: "
    "the cell was derived from the others, so that row's sum agrees by construction."
)
CHECK_NOTE = (
    "Published beside recomputed, in percent, points or tasks; mark: the least certain cell of the "
    "check. Where it is D, a cell was derived by this arithmetic and agrees by construction. A "
    "split by numeric task id puts an id's four variants on one side: 20 tasks of each category."
)
REACH_NOTE = (
    "Exact McNemar, two-sided, n = 80. The pairing is not published: p is given over all numbers "
    "of discordant tasks that the two counts allow, and near the number for independent arms. "
    "Discordant tasks, at most: beyond it p > 0.05 (blank: p > 0.05 always). Power at 0.2 to 0.5: "
    "for the published difference if it were true, at that share of discordant tasks (blank: not "
    "possible, or no difference). Tasks needed: for power 0.8 at a share of 0.3, or the difference "
    "where it is larger."
)
ICRL_REACH_NOTE = (
    "Average of five sets. Interval: 95 %, normal, both sides as independent samples of 500 "
    "questions a set (Bamboogle 125). Baselines copied from other papers used other retrievers and "
    "full sets: the interval is of chance alone."
)


def cells() -> pd.DataFrame:
    """Return every known percentage of RC-GRPO's Table 1 as a count of its tasks.

    Source: RC-GRPO (arXiv 2602.03025), Table 1.

    Returns:
        One row a cell: ``model``, ``method``, ``metric``, ``value`` as printed, ``n``, ``k`` and
        its Wilson interval ``low`` and ``high`` in %, and a ``finding`` where the cell is not the
        rounded k of n; there k is blank if there is none. ``mark``: how far the cell is known.

    >>> cells()["finding"].value_counts().to_dict()["no k/22 gives it, 14/23 does"]
    1
    """
    table = published("rc_grpo_table1").dropna(subset="value")
    sizes = table[table["metric"].isin(CATEGORIES)]["n"].unique()
    rows = []
    for cell in table.itertuples():
        row = {"model": cell.model, "method": cell.method, "metric": cell.metric}
        row |= {"value": cell.value, "n": cell.n, "k": pd.NA, "mark": cell.mark, "finding": ""}
        k = possible_count(cell.value, cell.n)
        if k is None:
            others = [f"{c}/{n}" for n in sizes if (c := possible_count(cell.value, n)) is not None]
            row["finding"] = f"no k/{cell.n} gives it, {' or '.join(others) or 'no other n'} does"
        else:
            bounds = wilson(k, cell.n)
            row |= {"k": k, "low": 100 * bounds.low, "high": 100 * bounds.high}
            if round(100 * k / cell.n, 2) != cell.value:
                row["finding"] = f"{k}/{cell.n} is {100 * k / cell.n:.3f}, cut off"
        rows.append(row)
    names = ["model", "method", "metric", "value", "k", "n", "low", "high", "mark", "finding"]
    return pd.DataFrame(rows, columns=names).astype({"k": "Int64"}).round(2)


def repairs() -> pd.DataFrame:
    """Return the permutations of a row's category cells after which each is a count of its tasks.

    All permutations of the printed cells over the categories are tried, for the rows of Table 1
    that hold a cell which no count gives.

    Returns:
        One row a (model, method, permutation that fits, category): the ``printed`` cell and its
        ``mark``, the cell ``repaired`` that belongs there with its count ``k`` of ``n`` and the
        category it was ``taken_from``, ``sum_k`` over the categories beside ``overall_k``, and
        ``fitting``, the number of permutations that fit.
    """
    table, rows = published("rc_grpo_table1"), []
    for (model, method), group in table.groupby(["model", "method"], sort=False):
        group = group.set_index("metric")
        parts = group.loc[list(CATEGORIES)]
        if parts["value"].isna().any() or parts["k"].notna().all():
            continue
        found = list(_fitting(parts))
        for order, counts in found:
            for place, (category, part) in enumerate(parts.iterrows()):
                source = CATEGORIES[order[place]]
                row = {"model": model, "method": method, "category": category}
                row |= {"printed": part["value"], "mark": part["mark"]}
                row |= {"repaired": parts.loc[source, "value"]}
                row |= {"k": counts[place], "n": part["n"], "taken_from": source}
                row |= {"sum_k": sum(counts), "overall_k": group.loc["overall", "k"]}
                rows.append(row | {"fitting": len(found)})
    return pd.DataFrame(rows)


def checks() -> pd.DataFrame:
    """Return every sum, average and difference of both papers beside its value recomputed.

    Returns:
        One row a check: ``paper``, ``place``, ``statement``, ``mark`` of its least certain cell,
        ``published``, ``recomputed`` and ``agrees``, to half a unit of the second decimal.
    """
    rows = [*_category_sums(), *_copies_and_differences(), *_data_sums(), *icrl_sums()]
    names = ["paper", "place", "statement", "mark", "published", "recomputed"]
    table = pd.DataFrame(rows, columns=names)
    table["recomputed"] = table["recomputed"].astype(float).round(4)
    table["agrees"] = (table["published"] - table["recomputed"]).abs() < 0.005 + 1e-9
    return table


def reach() -> pd.DataFrame:
    """Return what the paper's 80 tasks can say about its differences, whatever the pairing.

    How many tasks two arms solve differently is not published. It lies between the difference
    itself (all go one way) and what the two counts allow; exact McNemar is taken over that range.

    Returns:
        One row a difference: counts ``k_first`` and ``k_second`` of ``n``; ``difference`` in
        points; ``p_best`` and ``p_worst`` over the possible pairings and ``p_independent`` near the
        number of discordant tasks that independent arms would have; ``discordant_limit``, the
        largest number of discordant tasks at which p <= 0.05 (blank: never); the ``power`` at 5 %
        if the difference were true and a share of 0.2 to 0.5 of the tasks discordant (blank: not
        possible, or no difference); and ``tasks_needed`` for power 0.8 at a share of 0.3, or the
        difference if larger, to two digits.
    """
    overall = published("rc_grpo_table1").query("metric == 'overall'")
    counts, n = overall.set_index(["model", "method"])["k"].to_dict(), int(overall["n"].iloc[0])
    pairs = [
        (name, model, counts[model, METHODS[first]], counts[model, METHODS[second]])
        for name, (first, second) in COMPARISONS.items()
        for model in MODELS.values()
    ]
    best_closed = counts["Opus-4.5", "prompted"]
    pairs += [
        (f"{OURS} over Opus-4.5", model, counts[model, OURS], best_closed)
        for model in MODELS.values()
    ]
    table = pd.DataFrame([_reach(*pair, n) for pair in pairs])
    whole = {name: "Int64" for name in ("discordant_limit", "tasks_needed")}
    return table.astype(whole).round(10)


def write_audit(tables_dir: Path = paths.TABLES) -> list[Path]:
    """Write the audit as ``audit_*`` tables: cells, repairs, checks, reach, icrl and icrl_reach.

    Args:
        tables_dir: folder to write to.

    Returns:
        The paths written, `tables.write_table`'s four for each table.
    """
    rc_grpo = ["RC-GRPO: arXiv 2602.03025. Interval: Wilson, 95 %."]
    plans = {
        "cells": (cells(), {"value": "{:.2f}", "low": "{:.1f}", "high": "{:.1f}"}, rc_grpo),
        "repairs": (repairs(), {"printed": "{:.2f}", "repaired": "{:.2f}"}, [REPAIR_NOTE]),
        "checks": (checks(), {"published": "{:.2f}", "recomputed": "{:.2f}"}, [CHECK_NOTE]),
        "reach": (reach(), REACH_FORMATS, [REACH_NOTE]),
        "icrl": (icrl_rows(), {"average": "{:.2f}", "recomputed": "{:.2f}"}, icrl_notes()),
        "icrl_reach": (icrl_reach(), dict.fromkeys(GAIN, "{:+.2f}"), [ICRL_REACH_NOTE]),
    }
    inputs = {f"published/{p.name}": sha256(p) for p in sorted(paths.PUBLISHED.glob("*.csv"))}
    written = []
    for name, (table, formats, notes) in plans.items():
        stem = Path(tables_dir) / f"audit_{name}"
        shown = _shown(table, formats)
        written += write_table(table, stem, {"inputs": inputs}, shown=shown, notes=notes)
    return written


def _shown(table: pd.DataFrame, formats: dict[str, str]) -> pd.DataFrame:
    shown = table.astype(object)
    for column, form in formats.items():
        shown[column] = formatted(table[column], form)
    if "agrees" in shown:
        shown["agrees"] = shown["agrees"].map({True: "yes", False: "NO"})
    return shown.rename(columns=lambda name: HEADINGS.get(name, name.capitalize()))


def _fitting(parts: pd.DataFrame) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Orders in which to read the cells so that each is a count, with the counts."""
    for order in permutations(range(len(parts))):
        places = zip(order, parts["n"], strict=True)
        counts = [possible_count(parts["value"].iloc[i], n) for i, n in places]
        if None not in counts:
            yield order, counts


def _category_sums() -> Iterator[tuple]:
    repaired = repairs()
    for (model, method), group in published("rc_grpo_table1").groupby(["model", "method"]):
        group = group.set_index("metric")
        mine = repaired[(repaired["model"] == model) & (repaired["method"] == method)]
        counts = mine["k"] if len(mine) else group.loc[list(CATEGORIES), "k"]
        if counts.notna().all():
            n, after = group.loc["overall", "n"], " after the repair" if len(mine) else ""
            statement = f"{model}, {method}: overall from the categories' counts{after}"
            overall, mark = group.loc["overall", "value"], group["mark"].max()
            yield "RC-GRPO", "Table 1", statement, mark, overall, 100 * counts.sum() / n


def _copies_and_differences() -> Iterator[tuple]:
    table = published("rc_grpo_table1").query("metric == 'overall'")
    counts = table.set_index(["model", "method"])[["k", "n"]]
    for name in ("rc_grpo_table2", "rc_grpo_table3a", "rc_grpo_table3b"):
        for cell in published(name).itertuples():
            methods = cell.method.split(" - ")
            k, n = zip(*(counts.loc[(cell.model, method)] for method in methods), strict=True)
            value = 100 * (k[0] - sum(k[1:])) / n[0]
            place = cell.source.split(", ")[1]
            statement = f"{cell.model}: {cell.method} from counts"
            yield "RC-GRPO", place, statement, cell.mark, cell.value, value


def _data_sums() -> Iterator[tuple]:
    table = published("rc_grpo_tables6_7").set_index(["method", "metric"])["value"]
    for split in ("train", "test"):
        parts = [int(table["RL", f"{split} tasks {category}"]) for category in CATEGORIES]
        total = float(table["RL", f"{split} tasks"])
        yield "RC-GRPO", "Tables 6-7", f"{split} tasks from the categories", "A", total, sum(parts)
    for category in CATEGORIES:
        test = float(table["RL", f"test tasks {category}"])
        statement = f"test tasks of {category} under a split by id"
        yield "RC-GRPO", "Tables 6-7", statement, "A", test, 20
    size = float(published("rc_grpo_table1").query("metric == 'overall'")["n"].iloc[0])
    parts = published("rc_grpo_table1").query("metric in @CATEGORIES").drop_duplicates("metric")
    yield "RC-GRPO", "Table 1", "test tasks from the categories' sizes", "A", size, parts["n"].sum()


def _reach(name: str, model: str, first: int, second: int, n: int) -> dict:
    difference = first - second
    row = {"comparison": name, "model": model, "k_first": first, "k_second": second, "n": n}
    row["difference"] = 100 * difference / n
    low, high = max(difference, 0), min(first, n - second)  # b: tasks that only the first solves
    p = {2 * b - difference: _mcnemar_p(b, b - difference) for b in range(low, high + 1)}
    independent = (first * (n - second) + second * (n - first)) / n
    significant = [discordant for discordant, value in p.items() if value <= ALPHA]
    row |= {"p_best": min(p.values()), "p_worst": max(p.values())}
    row["p_independent"] = p[min(p, key=lambda discordant: abs(discordant - independent))]
    row["discordant_limit"] = max(significant, default=None)
    share = abs(difference) / n
    for discordant in DISCORDANT:
        possible = 0 < share <= discordant
        row[f"power_{discordant}"] = mcnemar_power(share, discordant, n) if possible else None
    return row | {"tasks_needed": _tasks_needed(share, max(0.3, share))}


def _mcnemar_p(b: int, c: int) -> float:
    return mcnemar([1] * b + [0] * c + [1], [0] * b + [1] * c + [1]).p  # one concordant task


def _tasks_needed(difference: float, discordant: float) -> int | None:
    """Smallest n, to two digits, for power 0.8; None for no difference."""
    if difference == 0:
        return None
    n = 10
    while mcnemar_power(difference, discordant, n) < POWER:
        n += 10 ** max(len(str(n)) - 2, 1)
    return n
