"""The audit of the published numbers finds the known slips, and its committed tables are fresh."""

import pandas as pd

from rc_lib import paths
from rc_lib.audit import cells, checks, repairs, write_audit
from rc_lib.published import possible_count


def test_every_printed_percentage_is_a_count_or_is_flagged():
    for cell in cells().itertuples():
        possible = possible_count(cell.value, int(cell.n)) is not None
        assert possible == (not pd.isna(cell.k)) == (cell.finding == ""), cell


def test_the_five_shifted_cells_are_repaired_and_no_other():
    found = repairs()
    assert (found["fitting"] == 1).all() and (found["sum_k"] == found["overall_k"]).all()
    assert (
        sorted(found.query("category != taken_from")["model"])
        == ["LLaMA-3.1-8B-Instruct"] * 2 + ["Opus-4.5"] * 3
    )


def test_the_icrl_average_that_cannot_be_right_is_found():
    wrong = checks().query("paper == 'ICRL' and not agrees")
    assert (8.94, 9.06) in list(zip(wrong["published"], wrong["recomputed"].round(2), strict=True))


def test_committed_audit_tables_are_what_the_code_writes(tmp_path):
    for path in write_audit(tmp_path):
        assert (paths.TABLES / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_count_is_possible_only_for_its_own_n():
    assert possible_count(60.87, 23) == 14
    assert possible_count(60.87, 22) is None
