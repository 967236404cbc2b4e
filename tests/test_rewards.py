"""ICRL's reward against a plain second version, and what each scope of it pays."""

import itertools
import re
import string

import pytest

from rc_lib.envs.tags import CODE
from rc_lib.rewards import (
    PENALTIES,
    contains_all,
    exact_match,
    extract_answer,
    format_score,
    normalize_answer,
    search_reward,
    violations,
)

GOOD = ["<think> hm </think> <search> q </search>", "<think> so </think> <answer> Lima </answer>"]


def naive_format(text):
    """The table of penalties, line by line, over one text."""
    if not text.strip():
        return 0.0
    low, score = text.lower(), 1.0
    if "<answer>" not in low or "</answer>" not in low:
        score -= 0.5
    if low.count("<answer>") != low.count("</answer>"):
        score -= 0.2
    if "<think>" not in low or "</think>" not in low:
        score -= 0.15
    if low.count("<think>") != low.count("</think>"):
        score -= 0.1
    if "<search>" not in low and "</search>" not in low:
        score -= 0.1
    pairs = re.findall("<answer>(.*?)</answer>", low, re.DOTALL)
    if not pairs or not pairs[-1].strip():
        score -= 0.2
    return max(0.0, score)


def test_format_equals_the_table_for_every_mixture_of_tags():
    pieces = ["<think>", "</think>", "<search>", "</SEARCH>", "<answer>", "</answer>", "x"]
    seen = set()
    for size in range(5):
        for chosen in itertools.product(pieces, repeat=size):
            text = " ".join(chosen)
            assert format_score([text]) == pytest.approx(naive_format(text)), text
            seen.update(violations([text]))
    assert seen == set(PENALTIES)


def test_a_whole_rollout_earns_everything_and_each_violation_its_penalty():
    assert search_reward(GOOD, ["Lima"]) == {"reward": 1.0, "em": 1.0, "exact": 1.0, "format": 1.0}
    assert search_reward(GOOD, ["Oslo"])["reward"] == 0.2
    assert search_reward(GOOD[1:], ["lima."])["reward"] == pytest.approx(0.8 + 0.2 * 0.9)
    assert violations(["<think>", *GOOD]) == ["unbalanced_think"]
    assert violations([GOOD[0], "Lima"]) == ["no_answer", "empty_answer"]
    assert format_score([GOOD[0], "Lima"]) == pytest.approx(0.3)
    assert format_score(["Lima"]) == pytest.approx(0.05)


@pytest.mark.parametrize("texts", [[], [""], [" \n", "\t"]])
def test_nothing_written_earns_nothing(texts):
    assert search_reward(texts, ["Lima"]) == {"reward": 0, "em": 0, "exact": 0, "format": 0}


def test_equal_scores_are_the_same_float():
    # Unrounded these are 0.44999999999999996 and 0.45000000000000007: a group with spread.
    one, other = "<search> <answer> </answer> <answer>", "<think> <answer> x </answer> <answer>"
    assert violations([one]) == ["unbalanced_answer", "no_think", "empty_answer"]
    assert violations([other]) == ["unbalanced_answer", "no_think", "unbalanced_think", "no_tool"]
    assert format_score([one]) == format_score([other]) == 0.45


def test_normalisation_equals_a_loop_over_words():
    texts = ["The  Beatles!", "a-b", "An apple, the THE", "Theatre", "Ü.S.", "don't", "1,000", "a"]
    for text in texts:
        kept = "".join(c for c in text.lower() if c not in string.punctuation)
        words = [word for word in kept.split() if word not in ("a", "an", "the")]
        assert normalize_answer(text) == " ".join(words)


def test_any_alias_is_right_and_a_part_of_one_is_not():
    assert exact_match("the U.S.A.", ["United States", "USA"])
    assert not exact_match("United", ["United States", "USA"])
    with pytest.raises(ValueError, match="no gold answer"):
        exact_match("x", [])


def test_several_golds_count_only_when_all_are_contained_and_only_in_training():
    boroughs = ["Queens", "Bronx"]
    both = search_reward([GOOD[0], "<answer> Bronx and Queens </answer>"], boroughs)
    assert (both["em"], both["exact"]) == (1.0, 0.0)
    assert search_reward([GOOD[0], "<answer> Bronx and so on </answer>"], boroughs)["em"] == 0.0
    assert search_reward([GOOD[0], "<answer> in Lima </answer>"], ["Lima"])["em"] == 0.0
    assert not contains_all("", boroughs)


def test_the_last_complete_answer_of_one_message_counts():
    assert extract_answer(["<answer> a </answer> <answer> b </answer>", "<answer> c"]) == "b"
    assert extract_answer(["<answer> a", "b </answer>"]) == ""
    assert extract_answer(["<ANSWER>\n a\nb </Answer>"]) == "a\nb"


def test_an_empty_answer_never_matches():
    # "the" normalises to nothing, as an empty answer does.
    assert search_reward([GOOD[0], "<answer> </answer>"], ["The"])["em"] == 0.0


def test_other_tag_names_are_scored_alike():
    renamed = [text.replace("search>", "code>") for text in GOOD]
    assert search_reward(renamed, ["Lima"], CODE)["reward"] == 1.0
    assert violations(GOOD, CODE) == ["no_tool"]
