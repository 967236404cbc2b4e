"""ICRL's tables recomputed: averages, named gains, and which cells 500 questions can give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from rc_lib.published import possible_count, published

# Questions of ICRL's test sets if it drew 500 where there are more; Bamboogle has 125.
ICRL_QUESTIONS = {"TriviaQA": 500, "HotpotQA": 500, "2Wiki": 500, "MuSiQue": 500, "Bamboogle": 125}
ICRL_TABLES = ("icrl_table_3b", "icrl_table_7b", "icrl_table_14b")
PROBLEMS = 30  # of AIME, a year
# First method minus second, by table.
ICRL_GAINS = {
    "icrl_table_3b": (("ICRL", "Search-R1"), ("ICRL", "O2-Searcher")),
    "icrl_table_7b": (("ICRL 3-2-0", "ParallelSearch"), ("ICRL 3-2-0", "ICRL 3-2-1-0")),
    "icrl_table_14b": (("ICRL", "CoT"),),
}


def icrl_rows() -> pd.DataFrame:
    """Return for every row of ICRL's tables whether it can come from samples of 500 questions.

    A cell of one decimal fits k/500 by chance in 1 of 2 cases, one of Bamboogle k/125 in 1 of 8, so
    that all five fit by chance in 1 of 128.

    Source: ICRL (arXiv 2603.08068), results at 3B, 7B and 14B.

    Returns:
        One row a method: ``model``, ``method``, the ``average`` printed and ``recomputed``,
        ``fitting`` cells of five, and ``not_fitting``, their names.
    """
    rows = []
    for model, method, values, average, _ in _icrl():
        wrong = [s for s, n in ICRL_QUESTIONS.items() if possible_count(values[s], n, 1) is None]
        row = {"model": model, "method": method, "average": average}
        row |= {"recomputed": round(values.mean(), 4), "fitting": len(values) - len(wrong)}
        rows.append(row | {"not_fitting": ", ".join(wrong)})
    return pd.DataFrame(rows)


def icrl_reach() -> pd.DataFrame:
    """Return ICRL's gains in average accuracy with the interval that its sample sizes would give.

    Both sides are taken as independent samples of `ICRL_QUESTIONS`, which baselines copied from
    other papers are not: it is the size of chance alone, without the differences of retriever and
    test set.

    Returns:
        One row a gain: ``model``, ``first``, ``second``, ``difference`` of the averages in points,
        and the normal 95 % interval ``low``, ``high``.
    """
    found = {(model, method): values / 100 for model, method, values, *_ in _icrl()}
    n, rows = pd.Series(ICRL_QUESTIONS), []
    for name, gains in ICRL_GAINS.items():
        model = published(name)["model"].iloc[0]
        for methods in gains:
            first, second = (found[model, method] for method in methods)
            variance = sum((p * (1 - p) / n).sum() for p in (first, second))
            difference, half = (first - second).mean(), 1.96 * np.sqrt(variance) / len(n)
            row = {"model": model, "first": methods[0], "second": methods[1]}
            ends = {"low": 100 * (difference - half), "high": 100 * (difference + half)}
            rows.append(row | {"difference": 100 * difference} | ends)
    return pd.DataFrame(rows).round(2)


def icrl_sums() -> Iterator[tuple]:
    """Yield the rows of `audit.checks` for ICRL: averages of the cells, and the gains named."""
    averages = {}
    for model, method, values, average, mark in _icrl():
        averages[model, method] = values.mean()
        size = f"results at {model.split('-')[1]}"
        statement = f"{method}: average of the five sets"
        yield "ICRL", size, statement, mark, average, values.mean()
    for gain in published("icrl_table_gains").itertuples():
        first, second = (averages[gain.model, method] for method in gain.method.split(" - "))
        statement = f"{gain.model}: {gain.method}"
        yield "ICRL", "gains named", statement, gain.mark, gain.value, first - second


def icrl_notes() -> list[str]:
    """Return what the cells of one decimal, the AIME cells and the turn shares say about their n.

    >>> len(icrl_notes())
    3
    """
    pooled = sum(ICRL_QUESTIONS.values())
    turns, aime = published("icrl_table_turns"), published("icrl_table_aime")
    counts = [(t.method, t.value, possible_count(t.value, pooled)) for t in turns.itertuples()]
    words = [f"{value} ({method}) is {k}/{pooled}" for method, value, k in counts if k is not None]
    odd = sum(possible_count(value, PROBLEMS, 1) is None for value in aime["value"])
    return [
        "Fitting: cells of five that are a count of 500 questions (Bamboogle: of its 125), to one "
        "decimal. All five fit by chance in 1 row of 128, so a row that does not fit is not "
        "one count each on such samples, and one that fits may be.",
        "Shares of episodes that finished within two turns, of all questions pooled: "
        f"{'; '.join(words) or 'none fits'}. Two decimals fit by chance in 1 case of 5.",
        f"AIME has {PROBLEMS} problems a year: {odd} of {len(aime)} cells are no count of them, so "
        "they are means over several samples, whose number is not known here.",
    ]


def _icrl() -> Iterator[tuple[str, str, pd.Series, float, str]]:
    """Model, method, cells by test set, printed average and its mark, row by row of the tables."""
    for name in ICRL_TABLES:
        for (model, method), group in published(name).groupby(["model", "method"], sort=False):
            group = group.set_index("metric")
            average, mark = group.loc["average", ["value", "mark"]]
            yield model, method, group.loc[list(ICRL_QUESTIONS), "value"], average, mark
