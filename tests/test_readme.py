"""README.md says what the files say, and its blocks are fresh."""

import re

import pytest

from rc_lib import paths, readme


def test_every_block_of_the_readme_is_fresh():
    text = readme.README.read_text(encoding="utf-8")
    assert readme.refresh(text) == text, "stale: run make figures"


def test_the_readme_names_every_make_target_it_should():
    text = readme.README.read_text(encoding="utf-8")
    for target in ("reproduce", "test", "smoke", "figures", "lab"):
        assert f"make {target}" in text


def test_links_of_the_readme_lead_to_files():
    text = readme.README.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", text)
    assert links
    for link in links:
        assert (paths.ROOT / link).exists(), link


def test_every_module_says_what_it_is_in_one_line():
    lines = readme.file_list().split("\n")[1:-1]
    for line in lines:
        name, summary = line.split(maxsplit=1)
        assert len(summary) >= 10, name


def test_an_unknown_block_is_an_error():
    with pytest.raises(ValueError, match="block 'nothing' is unknown"):
        readme.refresh("<!-- begin: nothing -->\n<!-- end: nothing -->")


def test_deviations_are_collected_whole():
    text = readme.deviations()
    assert "rc_lib/sft.py" in text and "sum over the tokens of a trajectory." in text


def test_the_claims_block_is_made_from_the_frame_of_claims_md(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text("<!-- begin: claims -->\nold\n<!-- end: claims -->\n", encoding="utf-8")
    text = readme.write(copy).read_text(encoding="utf-8")
    assert "old" not in text
    whole = (paths.ROOT / "CLAIMS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` .*$", text, re.M)
    assert rows == list(readme.MAIN_CLAIMS)
    for line in text.split("\n"):
        if line.startswith("| `"):  # all but the last two cells of CLAIMS.md
            assert line.removesuffix(" |") in whole
    total = sum(
        map(int, re.findall(r"(\d+) (?:reproduced|direction|not)", text.split("CLAIMS.md")[-1]))
    )
    assert f"All {total} claims" in text and whole.count("\n| `") == total


def test_a_changed_number_makes_the_claims_block_stale(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text("<!-- begin: claims -->\n<!-- end: claims -->\n", encoding="utf-8")
    fresh = readme.write(copy).read_text(encoding="utf-8")
    changed = fresh.replace("**not reproduced**", "**reproduced**", 1)
    assert changed != fresh and readme.refresh(changed) == fresh
