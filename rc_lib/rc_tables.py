"""RC-GRPO's Tables 2 to 5 from the records, each with the published values beside the measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rc_lib import paths
from rc_lib.config import ARMS
from rc_lib.entropy_reward import (
    COLUMNS,
    entropy_figure,
    read_curves,
    show_table4,
    table4,
    table4_notes,
)
from rc_lib.figures import save_figure
from rc_lib.late_phase import late_values, show_table5, table5, table5_notes
from rc_lib.manifest import sha256
from rc_lib.rc_contrasts import CONTRASTS, contrast_notes, contrast_table, show_contrast
from rc_lib.records import input_hashes, read_records, record_files
from rc_lib.table1 import table1_pairs
from rc_lib.tables import write_table


def write_rc_tables(
    records_root: Path, tables_dir: Path, figures_dir: Path, profile: str, seeds: Sequence[int]
) -> list[Path]:
    """Write Tables 2, 3A, 3B, 4 and 5 of RC-GRPO, and the figure of Table 4, without a model.

    Args:
        records_root: folder that holds ``seed<k>/<arm>/`` of Table 1's arms; others do not matter.
        tables_dir, figures_dir: folders to write to.
        profile: profile of the records.
        seeds: seeds that should be there; missing ones are named in the tables.

    Returns:
        The paths written.

    Raises:
        FileNotFoundError: if there is no record that a table needs, naming the notebooks.
        ValueError: for a damaged record.
    """
    place = (records_root, tables_dir, profile, seeds)
    return [
        *write_contrasts(tuple(CONTRASTS), *place),
        *write_table4(records_root, tables_dir, figures_dir, profile, seeds),
        *write_table5(*place),
    ]


def write_contrasts(
    names: Sequence[str], records_root: Path, tables_dir: Path, profile: str, seeds: Sequence[int]
) -> list[Path]:
    """Write some of `CONTRASTS`; the other arguments are those of `write_rc_tables`."""
    root = paths.resolve(records_root)
    about, written = _about(root, profile, seeds, "per_item.csv"), []
    if not about["inputs"]:
        raise FileNotFoundError(
            f"no per_item.csv of {', '.join(ARMS)} under {root} for seeds {list(seeds)}; run "
            f"notebooks 10_stage1_sft_and_rctp and 11_stage2_rc_grpo with {profile=} first"
        )
    per_item = read_records(root, profile, seeds)
    per_item = per_item[per_item["arm"].isin(ARMS)]
    pairs = table1_pairs(per_item, seeds)  # Holm's family is that of Table 1, so all arms count
    for name in names:
        contrast = CONTRASTS[name]
        table = contrast_table(contrast, per_item, pairs, seeds)
        cells = published_hashes(*contrast.comparisons.values())
        written += write_table(
            table, paths.resolve(tables_dir) / name, about | {"inputs": about["inputs"] | cells},
            shown=show_contrast(contrast, table), notes=contrast_notes(contrast, table),
        )  # fmt: skip
    return written


def write_table4(records_root, tables_dir, figures_dir, profile, seeds) -> list[Path]:
    """Write table and figure ``table4_entropy_reward``; arguments as `write_rc_tables`."""
    root = paths.resolve(records_root)
    curves = read_curves(root, seeds, COLUMNS)
    table, stem = table4(curves, profile, seeds), "table4_entropy_reward"
    about = _about(root, profile, seeds, "curve.csv")
    drawn = about | {"inputs": dict(about["inputs"])}
    about["inputs"] |= published_hashes("rc_grpo_table4")
    return [
        *write_table(
            table, paths.resolve(tables_dir) / stem, about,
            shown=show_table4(table), notes=table4_notes(profile),
        ),
        *save_figure(
            entropy_figure(curves, table, profile), paths.resolve(figures_dir) / stem, drawn
        ),
    ]  # fmt: skip


def write_table5(records_root, tables_dir, profile, seeds) -> list[Path]:
    """Write ``table5_late_phase``; arguments as `write_rc_tables`."""
    root = paths.resolve(records_root)
    values, steps = late_values(root, profile, seeds)
    table = table5(values, profile, seeds)
    about = _about(root, profile, seeds, "curve.csv", "groups.csv")
    about["inputs"] |= published_hashes("rc_grpo_table5")
    return write_table(
        table, paths.resolve(tables_dir) / "table5_late_phase", about,
        shown=show_table5(table), notes=table5_notes(table, profile, steps),
    )  # fmt: skip


def published_hashes(*names: str) -> dict[str, str]:
    """Return the sha256 of files of published cells, as a manifest has them."""
    return {f"published/{name}.csv": sha256(paths.PUBLISHED / f"{name}.csv") for name in names}


def _about(root: Path, profile: str, seeds: Sequence[int], *names: str) -> dict:
    """What a table or figure was made from: the named files of Table 1's RL arms."""
    files = [
        path
        for name in names
        for (arm, _), path in record_files(root, name, seeds).items()
        if arm in ARMS
    ]
    return {"profile": profile, "seeds": list(seeds), "inputs": input_hashes(root, files)}
