"""Reward-goal tokens: the string, who gets which, and that nothing else decides it."""

import numpy as np
import pytest

from rc_lib.conditioning import HIGH, LOW, Conditioning, condition
from rc_lib.envs.base import Message

CONVERSATION = [Message("system", "s"), Message("user", "first"), Message("user", "second")]


def test_goal_stands_at_the_end_of_the_first_user_message_only():
    conditioned = condition(CONVERSATION, HIGH)
    assert conditioned[1] == Message("user", "first\n\n[Reward Goal: <|high_reward|>]")
    assert [conditioned[0], conditioned[2]] == [CONVERSATION[0], CONVERSATION[2]]
    assert condition(CONVERSATION, LOW)[1].content.endswith("\n\n[Reward Goal: <|low_reward|>]")


def test_no_token_and_the_given_list_leave_messages_unchanged():
    before = list(CONVERSATION)
    assert condition(CONVERSATION, None) == before
    condition(CONVERSATION, HIGH)
    assert before == CONVERSATION


def test_a_conversation_without_user_and_an_unknown_token_are_errors():
    with pytest.raises(ValueError, match="no user message.*system"):
        condition([Message("system", "s")], HIGH)
    with pytest.raises(ValueError, match="unknown reward token 'middle'"):
        condition(CONVERSATION, "middle")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "random"}, "unknown conditioning 'random'"),
        ({"kind": "iid", "p_high": 1.5}, "p_high is 1.5"),
        ({"kind": "iid", "p_high": float("nan")}, "p_high is nan"),
        ({"kind": "constant"}, "constant conditioning has token None"),
        ({"kind": "none", "token": "high"}, "takes no token"),
    ],
)
def test_settings_that_make_no_sense_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        Conditioning(**options)


def test_tokens_depend_on_the_address_and_not_on_earlier_draws():
    conditioning = Conditioning("iid")
    there = conditioning.tokens(1, 2, 3, 8)
    for address in [(0, 2, 3), (1, 1, 3), (1, 2, 2)]:
        assert conditioning.tokens(*address, 64) != conditioning.tokens(1, 2, 3, 64)
    assert conditioning.tokens(1, 2, 3, 8) == there
    # A member's token does not depend on how many members follow it.
    assert conditioning.tokens(1, 2, 3, 20)[:8] == there


def test_iid_tokens_follow_p_sample_and_vary_in_number():
    groups = [Conditioning("iid", p_high=0.3).tokens(0, 0, g, 5) for g in range(2000)]
    counts = np.array([group.count(HIGH) for group in groups])
    assert abs(counts.mean() / 5 - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 10_000)
    assert abs(counts.var() - 5 * 0.3 * 0.7) < 0.15  # binomial, not fixed


def test_extreme_probabilities_give_one_token():
    for kind in ("iid", "stratified"):
        assert Conditioning(kind, p_high=1.0).tokens(0, 0, 0, 7) == [HIGH] * 7
        assert Conditioning(kind, p_high=0.0).tokens(0, 0, 0, 7) == [LOW] * 7


def test_stratified_counts_are_fixed_and_any_member_may_be_high():
    groups = [Conditioning("stratified", p_high=0.25).tokens(0, 0, g, 8) for g in range(400)]
    assert {group.count(HIGH) for group in groups} == {2}
    share = np.mean([[token == HIGH for token in group] for group in groups], axis=0)
    assert np.abs(share - 0.25).max() < 0.1


@pytest.mark.parametrize(("p_high", "size", "counts"), [(0.5, 5, {2, 3}), (0.29, 100, {29})])
def test_stratified_counts_round_without_bias(p_high, size, counts):
    groups = [Conditioning("stratified", p_high).tokens(0, s, 0, size) for s in range(2000)]
    drawn = [group.count(HIGH) for group in groups]
    assert set(drawn) == counts
    assert abs(np.mean(drawn) / size - p_high) < 0.01
