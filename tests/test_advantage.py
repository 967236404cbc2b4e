"""Group-relative advantages against naive loops, published reports and the paper's theory."""

import math

import numpy as np
import pytest

from rc_lib.advantage import group_advantages, group_statistics


def naive_advantages(rewards, group_ids, eps):
    """The paper's formula, one rollout at a time."""
    out = []
    for reward, group_id in zip(rewards, group_ids, strict=True):
        group = [r for r, g in zip(rewards, group_ids, strict=True) if g == group_id]
        mu = math.fsum(group) / len(group)
        sigma = math.sqrt(math.fsum((r - mu) ** 2 for r in group) / len(group))
        out.append((reward - mu) / (sigma + eps) if max(group) > min(group) else 0.0)
    return out


def test_matches_a_naive_loop_over_groups_of_unequal_size_in_any_order():
    """Groups go by id (Search-R1#88) and keep their own statistics (slime#1414)."""
    draws = np.random.default_rng(0)
    group_ids = draws.choice([3, 7, -1, 100], size=50, p=[0.1, 0.2, 0.3, 0.4])
    rewards = draws.random(50)
    expected = naive_advantages(rewards, group_ids, 1e-3)
    np.testing.assert_allclose(group_advantages(rewards, group_ids, eps=1e-3), expected, atol=1e-12)
    order = draws.permutation(50)
    shuffled = group_advantages(rewards[order], group_ids[order], eps=1e-3)
    np.testing.assert_allclose(shuffled, np.array(expected)[order], atol=1e-12)


def test_one_group_does_not_change_when_another_is_added():
    alone = group_advantages([1, 0, 0], [5, 5, 5])
    together = group_advantages([1, 0.3, 0, 0.9, 0], [5, 6, 5, 6, 5])
    np.testing.assert_array_equal(together[[0, 2, 4]], alone)


@pytest.mark.parametrize("value", [0.7, 0.1, 1 / 3, 1e8 + 0.1, -0.7, 0.0, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a_constant_group_has_advantage_exactly_zero(value, dtype, size, eps):
    """NeMo-RL PR#4161: eight rewards of 0.7 in fp32 have a standard deviation of 6e-8."""
    rewards = np.full(size, value, dtype=dtype)
    advantages = group_advantages(rewards, np.zeros(size, int), eps=eps)
    assert advantages.dtype == np.float64
    assert (advantages == 0.0).all()
    assert group_statistics(rewards, np.zeros(size, int), [None] * size)["sigma2"] == 0.0


def test_the_standard_deviation_is_the_population_one():
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0, 0.0], [0] * 5, eps=0.0)
    np.testing.assert_allclose(advantages, [2.0, -0.5, -0.5, -0.5, -0.5])


def test_without_scaling_only_the_mean_is_taken_off():
    advantages = group_advantages([3.0, 1.0, 5.0], [0, 0, 1], scale="none")
    np.testing.assert_array_equal(advantages, [1.0, -1.0, 0.0])


def test_a_tiny_spread_is_spread():
    advantages = group_advantages([1.0, 1.0 + 1e-9], [0, 0], eps=0.0)
    np.testing.assert_allclose(advantages, [-1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("rewards", "group_ids", "options", "message"),
    [
        ([0.0, float("nan")], [4, 9], {}, r"reward 1 \(group 9\) is nan"),
        ([float("inf")], [0], {}, "is inf"),
        ([0.0, 1.0], [0], {}, r"\(2,\) and group_ids \(1,\)"),
        ([], [], {}, "N >= 1"),
        ([[0.0]], [[0]], {}, r"shape \(1, 1\)"),
        ([0.0], [0], {"eps": -1.0}, "eps is -1.0"),
        ([0.0], [0], {"scale": "batch"}, "unknown scale 'batch'"),
    ],
)
def test_bad_arguments_are_errors_that_name_them(rewards, group_ids, options, message):
    with pytest.raises(ValueError, match=message):
        group_advantages(rewards, group_ids, **options)


def test_statistics_match_a_hand_made_step():
    rewards = [1, 1, 0, 0, 1, 0, 0.5, 0.5]
    group_ids = [0, 0, 1, 1, 2, 2, 3, 3]
    tokens = ["high", "low", "high", "low", "high", "low", "high", "low"]
    stats = group_statistics(rewards, group_ids, tokens, eps=0.0)
    assert stats == {
        "reward": 0.5,
        "mu_high": 0.625,
        "mu_low": 0.375,
        "sigma2": 0.0625,
        # Degenerate is a group without spread, whatever its mean (OpenRLHF#1270).
        "degenerate": 0.75,
        "all_fail": 0.25,
        "all_success": 0.25,
        "advantage_spread": 2.0,
        "advantage_spread_group": 0.5,
    }


def test_statistics_of_a_token_that_nobody_has_are_nan():
    stats = group_statistics([1, 0], [0, 0], ["high", None])
    assert stats["mu_high"] == 1.0
    assert math.isnan(stats["mu_low"])
    with pytest.raises(ValueError, match="1 tokens for 2 rewards"):
        group_statistics([1, 0], [0, 0], ["high"])


@pytest.mark.parametrize(
    ("p_high", "p_low", "sigma2", "degenerate"),
    [(1.0, 0.0, 0.2, 0.0625), (0.95, 0.95, 0.038, 0.7738)],
)
def test_statistics_of_many_groups_meet_the_theory(p_high, p_low, sigma2, degenerate):
    """RC-GRPO, Prop. 4.3, for binary rewards: q = p p_h + (1-p) p_l, G = 5, p = 0.5."""
    draws, groups, size = np.random.default_rng(1), 20_000, 5
    is_high = draws.random(groups * size) < 0.5
    rewards = draws.random(groups * size) < np.where(is_high, p_high, p_low)
    stats = group_statistics(rewards, np.repeat(np.arange(groups), size), is_high)
    assert abs(stats["sigma2"] - sigma2) < 0.003
    assert abs(stats["degenerate"] - degenerate) < 0.015
    assert stats["all_fail"] + stats["all_success"] == pytest.approx(stats["degenerate"])
