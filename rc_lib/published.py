"""The papers' own numbers, one cell a row, each with its source and a confidence mark."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rc_lib import paths

PUBLISHED_COLUMNS = ["model", "method", "metric", "value", "k", "n", "mark", "source", "note"]
MODELS = {"llama": "LLaMA-3.1-8B-Instruct", "qwen": "Qwen2.5-7B-Instruct"}


def published(name: str) -> pd.DataFrame:
    """Load a table of published numbers from ``paper_tables/published``.

    Args:
        name: e.g. ``rc_grpo_table1``.

    Returns:
        One row a cell, columns `PUBLISHED_COLUMNS`. ``value`` is float if every known value is a
        number, otherwise text; k and n are nullable integers; an unknown cell is missing.

    Raises:
        FileNotFoundError: for an unknown name, listing the known ones.
        ValueError: for other columns.

    >>> table = published("rc_grpo_table1").query("method == 'RCTP-FT+RC-GRPO'")
    >>> table.query("metric == 'overall'")["value"].tolist()
    [48.75, 85.0]
    """
    path = paths.PUBLISHED / f"{name}.csv"
    if not path.exists():
        known = ", ".join(sorted(p.stem for p in paths.PUBLISHED.glob("*.csv")))
        raise FileNotFoundError(f"no published table {name!r}; choose from {known}")
    table = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
    if list(table.columns) != PUBLISHED_COLUMNS:
        raise ValueError(f"{path}: columns {list(table.columns)}; expected {PUBLISHED_COLUMNS}")
    numbers = pd.to_numeric(table["value"], errors="coerce")
    if numbers.notna().equals(table["value"].notna()):
        table["value"] = numbers
    return table.astype({"k": "Int64", "n": "Int64"})


def possible_count(value: float, n: int, decimals: int = 2) -> int | None:
    """Return the k for which k of n, in percent, is a printed value, rounded or cut off.

    Args:
        value: printed percentage.
        n: trials, >= 1.
        decimals: of the print.

    Returns:
        k, or None where no k of n prints as this value.

    >>> possible_count(54.54, 22), possible_count(54.54, 23)
    (12, None)
    """
    k = round(value * n / 100)
    exact = 100 * k / n
    cut_off = np.floor(exact * 10**decimals) / 10**decimals
    fits = min(abs(exact - value) - 0.5 * 10**-decimals, abs(cut_off - value)) < 1e-9
    return k if fits and 0 <= k <= n else None
