"""The papers' own numbers, one cell a row, each with its source and a confidence mark."""

from __future__ import annotations

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
