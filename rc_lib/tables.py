"""Write tables as CSV, Markdown and LaTeX, and rebuild every result from the records."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from rc_lib import paths
from rc_lib.config import ALL_ARMS, ARMS
from rc_lib.figures import save_figure, table1_figure, training_dynamics
from rc_lib.manifest import sha256, write_json
from rc_lib.published import MODELS, published
from rc_lib.records import found_seeds, input_hashes, read_records, record_files
from rc_lib.table1 import (
    METHODS,
    missing_words,
    power_statement,
    table1,
    table1_mcnemar,
    table1_pairs,
    table1_tokens,
)

HEADINGS = {
    "overall": "Overall (%)", "base": "Base (%)", "miss_func": "MissFunc (%)",
    "miss_param": "MissParam (%)", "long_context": "LongContext (%)", "power": "Power set (%)",
    "unseen_wording": "Unseen wording (%)",
}  # fmt: skip
# Characters that LaTeX reads as commands; Styler escapes cells and headings, this the notes.
LATEX = {ord(c): f"\\{c}" for c in "&%$#_{}"} | {
    ord("~"): r"\textasciitilde{}", ord("^"): r"\textasciicircum{}", ord("\\"): r"\textbackslash{}",
    ord("<"): "$<$", ord(">"): "$>$",
}  # fmt: skip
LONG = 40  # rows from which a LaTeX table may break over pages


def write_table(
    table: pd.DataFrame,
    stem: Path,
    manifest: Mapping,
    *,
    shown: pd.DataFrame | None = None,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write a table as ``.csv`` (numbers), ``.md`` and ``.tex`` (as shown) and ``.manifest.json``.

    The same table gives the same bytes. A percent sign may stand in a heading, never in a cell.

    Args:
        table: numbers, blanks where unknown.
        stem: path without a suffix.
        manifest: what the table was made from; ``rows`` is added.
        shown: strings to print in place of the numbers; None prints the table as it is.
        notes: paragraphs under the printed table.

    Returns:
        The four paths.

    Raises:
        ValueError: for a percent sign in a cell, naming it.
    """
    shown = (table if shown is None else shown).astype(object)
    shown = shown.where(shown.notna(), "").astype(str)
    stem, cells = paths.resolve(stem), shown.stack()
    if cells.str.contains("%").any():
        cell = cells[cells.str.contains("%")].iloc[0]
        raise ValueError(
            f"{stem}: cell {cell!r} has a percent sign; put it in the column's heading"
        )
    texts = {
        ".csv": table.to_csv(index=False, lineterminator="\n"),
        ".md": _markdown(shown, notes),
        ".tex": _latex(shown, notes),
    }
    written = [_write(Path(f"{stem}{suffix}"), text) for suffix, text in texts.items()]
    about = {**manifest, "rows": len(table)}
    return [*written, write_json(about, f"{stem}.manifest.json")]


def show_table1(table: pd.DataFrame) -> pd.DataFrame:
    """Return `table1.table1` as a reader sees it, intervals in brackets behind the numbers."""
    measured = table["source"] == "measured"
    shown = pd.DataFrame(index=table.index)
    shown["Source"] = ("here, " + table["profile"]).where(measured, "paper [" + table["mark"] + "]")
    for column in ("model", "method", "token"):
        shown[column.capitalize()] = table[column]
    words = [
        missing_words(*row) if here else ""
        for here, row in zip(measured, _seeds(table), strict=True)
    ]
    shown["Seeds"] = words
    for column, heading in HEADINGS.items():
        interval = column in ("overall", "power", "unseen_wording")
        shown[heading] = with_brackets(table, column, "{:.2f}", interval)
    return shown


def show_pairs(pairs: pd.DataFrame, tests: pd.DataFrame) -> pd.DataFrame:
    """Return `table1.table1_pairs` as a reader sees it, with b/c of every seed from the tests."""
    shown = pairs[["test_set", "comparison"]].set_axis(["Test set", "Comparison"], axis=1)
    shown["Seeds"] = [missing_words(*row) for row in _seeds(pairs)]
    table = pairs.rename(columns={"low": "difference_low", "high": "difference_high"})
    shown["Difference (points)"] = with_brackets(table, "difference", "{:+.2f}", True)
    shown["p"] = formatted(pairs["p"], "{:.4f}")
    shown["p (Holm)"] = formatted(pairs["p_holm"], "{:.4f}")
    counts = tests.assign(cell=tests["b"].astype(str) + "/" + tests["c"].astype(str))
    cells = counts.groupby(["test_set", "comparison"])["cell"].agg(", ".join)
    places = zip(pairs["test_set"], pairs["comparison"], strict=True)
    shown["b/c by seed"] = [cells.get(place, "") for place in places]
    shown["Seeds with McNemar p (Holm) of at most 0.05"] = pairs["mcnemar_significant"]
    for short, model in MODELS.items():
        shown[f"{model} (paper)"] = formatted(pairs[f"published_{short}"], "{:+.2f}")
    return shown


def rebuild_all(
    records_root: Path,
    tables_dir: Path,
    figures_dir: Path,
    profile: str,
    seeds: Sequence[int] | None = None,
) -> list[Path]:
    """Rebuild every table and figure from recorded results, without a model.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/``.
        tables_dir: folder of the tables.
        figures_dir: folder of the figures.
        profile: profile of the records.
        seeds: seeds that should be there, missing ones are named; None takes those found.

    Returns:
        The paths written.

    Raises:
        FileNotFoundError: if there are no records.
        ValueError: for a damaged record.
    """
    records_root = paths.resolve(records_root)
    seeds = found_seeds(records_root) if seeds is None else sorted(seeds)
    items = record_files(records_root, "per_item.csv", seeds)
    per_item = read_records(records_root, profile, seeds)
    about = {
        "profile": profile,
        "seeds": seeds,
        "inputs": input_hashes(
            records_root, (path for (arm, _), path in items.items() if arm in ALL_ARMS)
        ),
    }
    written = _write_tables(per_item, Path(tables_dir), seeds, about)
    about = about | {"inputs": about["inputs"] | _published_hash()}
    main = table1(per_item, seeds)
    written += save_figure(table1_figure(per_item, main), Path(figures_dir) / "table1_bfcl", about)
    curves = record_files(records_root, "curve.csv", seeds)
    curves = {place: path for place, path in curves.items() if place[0] in ARMS}
    if curves:
        about = about | {"inputs": input_hashes(records_root, curves.values())}
        figure = training_dynamics(records_root, profile, seeds)
        written += save_figure(figure, Path(figures_dir) / "training_dynamics", about)
    return written


def table1_notes(table: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Return the paragraphs under Table 1: what was measured, how, and what its n can show."""
    measured = table[table["source"] == "measured"]
    here = measured.iloc[0]
    columns = {"test": "n", "power": "power_n", "unseen_wording": "unseen_wording_n"}
    counts = {name: measured[column].max() for name, column in columns.items()}
    sizes = ", ".join(f"{n} ({name})" for name, n in counts.items() if n > 0)
    cells = published("rc_grpo_table1")
    wrong = cells[cells["note"].str.startswith("no k/", na=False)]
    slips = [f"{r.model} {r.metric} {r.value:.2f} is {r.note}" for r in wrong.itertuples()]
    return [
        f"Measured at profile {here['profile']} (model {here['model']}), greedy decoding, "
        f"n = {sizes} tasks. In brackets the 95 % interval: Wilson for published rows, crossed "
        "bootstrap over seeds and tasks for measured ones (Wilson where an arm is right on all "
        "tasks or on none).",
        "Published rows (arXiv 2602.03025, Table 1) are of other models on other tasks: levels do "
        "not compare, differences between methods may. Marks of the overall cell: [A] the paper's "
        "text, [B] several secondary readings agree, [C] one secondary source. Blank: not known.",
        "The paper does not state the reward token of its evaluation. Shown here: high for arms "
        "whose last training stage used tokens, none for the others; table1_bfcl_tokens has all.",
        "Published cells that cannot be right as printed: " + "; ".join(slips) + ".",
        *(power_statement(pairs, test_set) for test_set in pairs["test_set"].unique()),
    ]


def _write_tables(per_item, folder: Path, seeds: Sequence[int], about: Mapping) -> list[Path]:
    main, tokens = table1(per_item, seeds), table1_tokens(per_item, seeds)
    tests, pairs = table1_mcnemar(per_item), table1_pairs(per_item, seeds)
    power = [power_statement(pairs, test_set) for test_set in pairs["test_set"].unique()]
    with_published = {**about, "inputs": about["inputs"] | _published_hash()}
    p_note = (
        "p: two-sided, crossed bootstrap of paired differences; Holm over a test set's comparisons."
    )
    mcnemar_note = "b: right only in the first arm, c: right only in the second; exact McNemar."
    holm_note = "Holm over the comparisons of one test set and seed."
    return [
        *write_table(
            main, folder / "table1_bfcl", with_published,
            shown=show_table1(main), notes=table1_notes(main, pairs),
        ),
        *write_table(tokens, folder / "table1_bfcl_tokens", about, shown=_show_tokens(tokens)),
        *write_table(
            pairs, folder / "table1_bfcl_pairs", with_published,
            shown=show_pairs(pairs, tests), notes=[p_note, mcnemar_note, *power],
        ),
        *write_table(
            tests, folder / "table1_bfcl_mcnemar", about,
            shown=_show_tests(tests), notes=[mcnemar_note, holm_note],
        ),
    ]  # fmt: skip


def _show_tokens(tokens: pd.DataFrame) -> pd.DataFrame:
    names = {"arm": "Arm", "test_set": "Test set", "decoding": "Decoding", "token": "Token"}
    shown = tokens[list(names)].rename(columns=names)
    shown["Arm"] = tokens["arm"].map({"sft": "SFT", "rctp": "RCTP-FT"} | METHODS)
    shown["Seeds"] = [missing_words(*row) for row in _seeds(tokens)]
    shown["n"] = tokens["n"]
    shown["Acc. (%)"] = with_brackets(tokens, "accuracy", "{:.2f}", True)
    parts = {"r_state": "State", "r_action": "Action", "official": "Official", "strict": "Strict"}
    for part, heading in parts.items():
        shown[f"{heading} (%)"] = formatted(tokens[part], "{:.2f}")
    return shown


def _show_tests(tests: pd.DataFrame) -> pd.DataFrame:
    shown = tests.copy()
    shown["difference"] = formatted(tests["difference"], "{:+.2f}")
    for column in ("p", "p_holm"):
        shown[column] = formatted(tests[column], "{:.4f}")
    headings = {"test_set": "Test set", "difference": "Difference (points)", "p_holm": "p (Holm)"}
    return shown.rename(columns=headings | {"comparison": "Comparison", "seed": "Seed"})


def _seeds(table: pd.DataFrame) -> Iterable[tuple[int, str]]:
    return zip(table["seeds"], table["missing_seeds"], strict=True)


def formatted(values: pd.Series, form: str) -> list[str]:
    """Return the values as strings, a blank for each that is missing.

    >>> formatted(pd.Series([1.5, float("nan")]), "{:+.2f}")
    ['+1.50', '']
    """
    return ["" if pd.isna(value) else form.format(value) for value in values]


def with_brackets(table: pd.DataFrame, column: str, form: str, interval: bool) -> list[str]:
    means = formatted(table[column], form)
    if not interval:
        return means
    ends = [table[f"{column}_{end}"] for end in ("low", "high")]
    return [
        mean if pd.isna(low) else f"{mean} [{low:.1f}, {high:.1f}]"
        for mean, low, high in zip(means, *ends, strict=True)
    ]


def _published_hash() -> dict[str, str]:
    path = paths.PUBLISHED / "rc_grpo_table1.csv"
    return {f"published/{path.name}": sha256(path)}


def _markdown(shown: pd.DataFrame, notes: Sequence[str]) -> str:
    rows = [list(shown.columns), ["---"] * shown.shape[1], *shown.to_numpy().tolist()]
    lines = ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows]
    return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in notes)


def _latex(shown: pd.DataFrame, notes: Sequence[str]) -> str:
    """A tabular for booktabs and graphicx, or a longtable where it may be longer than a page."""
    long = len(shown) > LONG
    style = shown.style.hide(axis="index").format(escape="latex")
    body = style.format_index(escape="latex", axis=1).to_latex(
        hrules=True, column_format="l" * shown.shape[1], environment="longtable" if long else None
    )
    if not long:
        body = f"\\resizebox{{\\textwidth}}{{!}}{{%\n{body}}}\n"
    needs = "% needs booktabs, " + ("longtable" if long else "graphicx") + "\n"
    texts = [note.translate(LATEX) for note in notes]
    return needs + body + "".join(f"\\par\\smallskip{{\\footnotesize {text}}}\n" for text in texts)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return path
