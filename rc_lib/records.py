"""The per-item record of an evaluation: its columns, its file, the folders of a run's records.

A run keeps ``<records>/seed<k>/<arm>/per_item.csv`` and, of a trained arm, ``curve.csv``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from rc_lib import paths
from rc_lib.manifest import sha256

# A token's place here is its member number in `evaluate`, so draws stay with their token.
TOKENS = ("high", "low", "none")
DECODINGS = ("greedy", "sampled")
# Columns of 0 and 1, and the part of the environment's reward that each holds.
PARTS = {
    "correct": "reward", "r_state": "state", "r_action": "action", "official": "official",
    "strict": "strict",
}  # fmt: skip
LABELS = ("profile", "model", "arm", "seed", "token", "decoding", "test_set", "item_id", "category")
COLUMNS = (*LABELS, *PARTS)
INTEGERS = ("seed", *PARTS)


def check_per_item(per_item: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return per-item results with the record's column order and dtypes.

    Args:
        per_item: table with exactly the columns `COLUMNS`, in any order.
        name: what the table is, for the error.

    Raises:
        ValueError: for an unknown or missing column, a blank, a value that is not 0 or 1, an
            unknown token or decoding, no rows, or an item that comes twice.

    >>> check_per_item(pd.DataFrame({"arm": ["base"], "score": [1]}), "x.csv")
    Traceback (most recent call last):
        ...
    ValueError: x.csv: missing columns profile, model, seed, token, decoding, test_set, item_id, \
category, correct, r_state, r_action, official, strict; unknown columns score
    """
    _check_columns(per_item, name)
    table = per_item[list(COLUMNS)].reset_index(drop=True)
    blank = (table.isna() | (table.astype(str) == "")).to_numpy()
    if blank.any():
        row, column = np.argwhere(blank)[0]
        raise ValueError(f"{name}: blank {COLUMNS[column]} in row {row}; evaluate the arm again")
    for column in COLUMNS:
        table[column] = (
            _whole(table[column], name) if column in INTEGERS else table[column].astype(str)
        )
    for column in PARTS:
        check_choice(f"{name}: {column}", table[column].unique().tolist(), (0, 1))
    check_choice(f"{name}: token", table["token"].unique(), TOKENS)
    check_choice(f"{name}: decoding", table["decoding"].unique(), DECODINGS)
    key = list(LABELS[:-1])
    if table.duplicated(key).any():
        twice = table.loc[table.duplicated(key), key].iloc[0].to_dict()
        raise ValueError(f"{name}: the item {twice} comes twice; keep one row of it")
    return table


def write_per_item(per_item: pd.DataFrame, path: Path) -> Path:
    """Write per-item results as CSV: all of the file or none, the same bytes for the same rows.

    Raises:
        ValueError: as `check_per_item`.
    """
    path = paths.resolve(path)
    table = check_per_item(per_item, str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    table.to_csv(partial, index=False, lineterminator="\n")
    os.replace(partial, path)
    return path


def read_per_item(path: Path) -> pd.DataFrame:
    """Read and check what `write_per_item` wrote.

    Raises:
        ValueError: as `check_per_item`, or for a file that is cut off, naming it.
        FileNotFoundError: if there is no such file.
    """
    try:
        table = pd.read_csv(paths.resolve(path), dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{path}: not a per-item record ({error}); evaluate again") from error
    return check_per_item(table, str(path))


def found_seeds(records_root: Path) -> list[int]:
    """Return the seeds that have a folder ``seed<k>`` under a records folder, sorted."""
    names = (re.fullmatch(r"seed(\d+)", p.name) for p in paths.resolve(records_root).glob("seed*"))
    return sorted(int(match[1]) for match in names if match)


def record_files(
    records_root: Path, name: str, seeds: Sequence[int]
) -> dict[tuple[str, int], Path]:
    """Return the record files of one name that exist, by (arm, seed), sorted.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/``.
        name: ``per_item.csv`` or ``curve.csv``.
        seeds: seeds to look for.
    """
    files = {
        (path.parent.name, seed): path
        for seed in seeds
        for path in paths.resolve(records_root).glob(f"seed{seed}/*/{name}")
    }
    return dict(sorted(files.items()))


def input_hashes(records_root: Path, files: Iterable[Path]) -> dict[str, str]:
    """Return the sha256 of record files by their path below the records folder.

    The same records give the same entries in ``runs/`` and in ``paper_tables/records/``.
    """
    return {
        path.relative_to(paths.resolve(records_root)).as_posix(): sha256(path) for path in files
    }


def read_records(records_root: Path, profile: str, seeds: Sequence[int]) -> pd.DataFrame:
    """Read the per-item results of every arm and seed that is there.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/per_item.csv``.
        profile: the profile that the records must name.
        seeds: seeds to look for; one without records gives no rows.

    Raises:
        FileNotFoundError: if there is not one record.
        ValueError: for a damaged record, or one whose profile, arm or seed is not its folder's.
    """
    tables = []
    for (arm, seed), path in record_files(records_root, "per_item.csv", seeds).items():
        table = read_per_item(path)
        place = {"profile": profile, "arm": arm, "seed": seed}
        for column, expected in place.items():
            if set(table[column]) != {expected}:
                raise ValueError(
                    f"{path}: {column} is {sorted(set(table[column]))}, expected {expected!r}; "
                    "the record is in the wrong folder"
                )
        tables.append(table)
    if not tables:
        raise FileNotFoundError(
            f"no seed<k>/<arm>/per_item.csv under {records_root} for seeds {list(seeds)}; "
            f"run `make reproduce PROFILE={profile}` first"
        )
    return pd.concat(tables, ignore_index=True)


def seed_item_matrix(per_item: pd.DataFrame, value: str = "correct") -> pd.DataFrame:
    """Return one arm's values as a table of seeds by items, the items in their order of test.

    Args:
        per_item: rows of one arm, test set, token and decoding.
        value: column to take.

    Raises:
        ValueError: if the seeds were not tested on the same items.
    """
    order = per_item["item_id"].drop_duplicates()
    matrix = per_item.pivot(index="seed", columns="item_id", values=value)[order]
    if matrix.isna().any(axis=None):
        counts = per_item.groupby("seed").size().to_dict()
        arm, test_set = per_item[["arm", "test_set"]].iloc[0]
        raise ValueError(
            f"{arm} on {test_set}: the seeds were tested on different items "
            f"(rows a seed: {counts}); evaluate them on the same tasks"
        )
    return matrix.astype("int64")


def check_choice(name: str, values: Sequence, allowed: Sequence) -> None:
    """Raise ValueError, naming the value and the choices, for a value that is not allowed.

    >>> check_choice("token", ["high"], TOKENS)
    """
    for value in values:
        if value not in allowed:
            raise ValueError(f"{name} {value!r} is not one of {', '.join(map(str, allowed))}")


def _check_columns(per_item: pd.DataFrame, name: str) -> None:
    missing = [c for c in COLUMNS if c not in per_item.columns]
    unknown = [str(c) for c in per_item.columns if c not in COLUMNS]
    problems = [("missing", missing), ("unknown", unknown)]
    words = [f"{kind} columns {', '.join(found)}" for kind, found in problems if found]
    if words:
        raise ValueError(f"{name}: {'; '.join(words)}")
    if per_item.empty:
        raise ValueError(f"{name}: no rows; evaluate on at least one task")


def _whole(values: pd.Series, name: str) -> pd.Series:
    """As int64; a fraction must not be cut to a whole number on the way."""
    numbers = pd.to_numeric(values, errors="coerce")
    wrong = values[~(numbers % 1 == 0)]
    if len(wrong):
        raise ValueError(f"{name}: {values.name} is {wrong.iloc[0]}; it must be a whole number")
    return numbers.astype("int64")
