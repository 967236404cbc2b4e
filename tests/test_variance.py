"""Propositions 4.2 and 4.3: exact formulas against loops, enumeration and simulation."""

from itertools import product

import numpy as np
import pytest

from rc_lib.conditioning import Conditioning
from rc_lib.seeding import rng
from rc_lib.variance import (
    GRID,
    KINDS,
    all_equal_bounds,
    all_equal_probability,
    degenerate_probability,
    kappa,
    mixed_degenerate_probability,
    monte_carlo,
    simulate_groups,
    token_count_pmf,
    trajectory_probabilities,
    variance_parts,
)
from rc_lib.variance_records import decompose_groups
from rc_lib.variance_signal import (
    advantage_parts,
    bandit_gradients,
    gradient_weights,
)

DRAWS = rng(0, "test-variance")
STEPS = [DRAWS.dirichlet([0.3] * 3, [3] * t) for t in range(3)]  # pi(a_t | a_1 .. a_t-1)
PATHS = list(product(range(3), repeat=3))
LOGITS, REWARDS = np.array([[1.5, 0.0, -0.3], [-0.5, 0.2, 0.0]]), np.array([1.0, 0.0, 0.0])
POLICY = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
MU = POLICY @ REWARDS


def steps_of(path):
    return [float(STEPS[t][path[: t + 1]]) for t in range(3)]


# Proposition 4.2


def test_the_probability_of_equal_rollouts_is_that_of_a_loop_over_all_groups():
    size, p = 3, {path: float(np.prod(steps_of(path))) for path in PATHS}
    groups = list(product(PATHS, repeat=size))
    equal = [group for group in groups if len(set(group)) == 1]
    naive = sum(np.prod([p[path] for path in group]) for group in equal)
    assert all_equal_probability(STEPS, size) == pytest.approx(naive, abs=1e-12)
    for path in PATHS[::5]:
        assert all_equal_probability(STEPS, size, path) == pytest.approx(p[path] ** size, abs=1e-12)
    assert trajectory_probabilities(STEPS).sum() == pytest.approx(1)


def test_lemma_a2_and_the_bounds_hold_and_the_sum_of_the_steps_kl_is_exact():
    for path in PATHS:
        kl = -np.log(steps_of(path))  # of a point mass on the path to the policy
        exact = all_equal_probability(STEPS, 4, path)
        assert exact == pytest.approx(np.exp(-4 * kl.sum()), rel=1e-9)
        bounds = all_equal_bounds(4, 3, kl.max())
        assert exact >= bounds.exponential * (1 - 1e-9) >= bounds.linear - 1e-9
        assert all_equal_bounds(4, 3, kl.mean()).exponential == pytest.approx(exact, rel=1e-9)


def test_the_linear_bound_is_vacuous_from_one_over_g_on():
    assert all_equal_bounds(5, 4, 0.05).linear == pytest.approx(0)
    assert all_equal_bounds(5, 4, 0.06).linear < 0 < all_equal_bounds(5, 4, 0.06).exponential


# Proposition 4.3


def enumerated(size, p_high, mu_high, mu_low, kind):
    """E[sigma_g^2] and P(degenerate) by a loop over all tokens and all rewards of a group."""
    pmf, sigma2, degenerate = token_count_pmf(size, p_high, kind), 0.0, 0.0
    arrangements = np.bincount([sum(tokens) for tokens in product((0, 1), repeat=size)])
    for tokens in product((0, 1), repeat=size):
        for rewards in product((0, 1), repeat=size):
            chance = pmf[sum(tokens)] / arrangements[sum(tokens)]
            for token, reward in zip(tokens, rewards, strict=True):
                mu = mu_high if token else mu_low
                chance *= mu if reward else 1 - mu
            sigma2 += chance * np.var(rewards)
            degenerate += chance * (len(set(rewards)) == 1)
    return sigma2, degenerate


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", [(2, 0.5, 0.9, 0.1), (3, 0.4, 0.7, 0.7), (4, 0.3, 1.0, 0.2)])
def test_exact_values_equal_a_loop_over_all_groups(setting, kind):
    sigma2, degenerate = enumerated(*setting, kind)
    assert sum(variance_parts(*setting, kind=kind)) == pytest.approx(sigma2)
    assert degenerate_probability(*setting, kind) == pytest.approx(degenerate)


@pytest.mark.parametrize(
    ("setting", "sigma2", "degenerate"),
    [((5, 0.5, 1, 0), 0.2, 0.0625), ((5, 0.5, 0.95, 0.95), 0.038, 0.95**5 + 0.05**5)],
)
def test_two_known_settings(setting, sigma2, degenerate):
    assert sum(variance_parts(*setting)) == pytest.approx(sigma2)
    assert degenerate_probability(*setting) == pytest.approx(degenerate)
    assert variance_parts(5, 0.5, 1, 0)[0] == pytest.approx(kappa(5, 0.5))  # the bound is tight


def test_iid_tokens_are_no_better_than_no_tokens_of_the_same_mean():
    for size, p, high, low in GRID:
        q = p * high + (1 - p) * low
        assert sum(variance_parts(size, p, high, low)) == pytest.approx(
            (size - 1) / size * q * (1 - q)
        )
        assert degenerate_probability(size, p, high, low) == pytest.approx(
            q**size + (1 - q) ** size
        )


def test_stratified_tokens_have_more_variance_and_fewer_degenerate_groups():
    for size, p, high, low in GRID:
        fraction = size * p % 1
        expected = p * (1 - p) - fraction * (1 - fraction) / size**2
        assert kappa(size, p, "stratified") == pytest.approx(expected)
        assert expected >= kappa(size, p) - 1e-12
        fewer = degenerate_probability(size, p, high, low, "stratified")
        assert fewer <= degenerate_probability(size, p, high, low) + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_token_counts_are_those_that_conditioning_draws(kind):
    conditioning, groups = Conditioning(kind, p_high=0.3), 4000
    counts = [conditioning.tokens(0, 0, group, 4).count("high") for group in range(groups)]
    pmf = token_count_pmf(4, 0.3, kind)
    assert pmf.sum() == pytest.approx(1) and pmf @ np.arange(5) == pytest.approx(1.2)
    seen = np.bincount(counts, minlength=5) / groups
    assert (abs(seen - pmf) <= 3 * np.sqrt(pmf * (1 - pmf) / groups)).all()


def test_exact_values_agree_with_simulation_within_three_standard_errors():
    assert len(GRID) >= 200
    check = monte_carlo(GRID, "iid", 20_000, seed=0)
    for name in ("sigma2", "degenerate"):
        assert (abs(check[f"{name}_z"]) <= 3).all()
        assert np.corrcoef(check[name], check[f"{name}_mean"])[0, 1] > 0.999


def test_stratified_values_leave_three_standard_errors_as_rarely_as_chance_does():
    check = monte_carlo(GRID, "stratified", 20_000, seed=0)
    for name in ("sigma2", "degenerate"):
        z = abs(check[f"{name}_z"])
        assert (z > 3).sum() <= 3 and z.max() < 4  # 0.65 of 240 expected


def test_simulation_would_notice_the_formula_of_the_other_kind():
    settings = [setting for setting in GRID if setting[2] - setting[3] > 0.4]
    check = monte_carlo(settings, "stratified", 20_000, seed=0)
    wrong = np.array([sum(variance_parts(*setting)) for setting in settings])
    z = (check["sigma2_mean"] - wrong) / np.maximum(check["sigma2_se"], 1e-12)
    assert (z > 3).mean() > 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_between_0_and_1_follow_the_same_law_with_their_own_variances(kind):
    size, p, groups = 5, 0.3, 40_000
    shapes = {"high": (4.0, 2.0), "low": (1.0, 3.0)}  # of beta-distributed rewards
    mean = {k: a / (a + b) for k, (a, b) in shapes.items()}
    var = {k: a * b / ((a + b) ** 2 * (a + b + 1)) for k, (a, b) in shapes.items()}
    draws = rng(1, "test-beta")
    _, is_high = simulate_groups(size, p, 1, 0, groups, draws, kind)
    drawn = {k: draws.beta(*shape, is_high.shape) for k, shape in shapes.items()}
    sigma2 = np.where(is_high, drawn["high"], drawn["low"]).var(1)
    exact = sum(
        variance_parts(
            size, p, mean["high"], mean["low"], kind=kind, var_high=var["high"], var_low=var["low"]
        )
    )
    assert abs(sigma2.mean() - exact) <= 3 * sigma2.std() / np.sqrt(groups)
    assert exact >= kappa(size, p) * (mean["high"] - mean["low"]) ** 2


def test_q_that_differs_between_tasks_makes_more_groups_degenerate():
    alpha, beta, size = 0.7, 1.6, 5
    q = rng(2, "test-mixed").beta(alpha, beta, 200_000)
    sigma2 = (size - 1) / size * (q * (1 - q)).mean()
    expected = (q**size + (1 - q) ** size).mean()
    assert mixed_degenerate_probability(size, q.mean(), sigma2) == pytest.approx(expected, abs=3e-3)
    assert expected > degenerate_probability(size, 0.5, q.mean(), q.mean()) + 0.2


# What groups say


def test_the_variance_splits_exactly_into_the_ceiling_and_the_spread_over_tasks():
    rewards, _ = simulate_groups(5, 0.5, 0.8, 0.2, 300, rng(3, "test-identity"))
    parts = decompose_groups(rewards)
    q = parts["reward"]
    assert parts["sigma2"] == pytest.approx(rewards.var(1).mean())
    assert parts["sigma2"] == pytest.approx(0.8 * (q * (1 - q) - parts["task_spread"]))
    assert parts["degenerate"] == parts["all_fail"] + parts["all_success"]
    assert np.isnan(parts["gap"]) and np.isnan(parts["between"])


def test_between_and_within_are_unbiased_for_tasks_of_different_gaps():
    """A token that helps in one half of the tasks and hurts in the other: no gap, yet a part."""
    draws, p, groups = rng(4, "test-between"), 0.5, 40_000
    helped, _ = simulate_groups(5, p, 0.9, 0.3, groups, draws)
    rewards, is_high = simulate_groups(5, p, 0.9, 0.3, groups, draws)
    hurt = draws.random(groups) < 0.5
    is_high[hurt] = ~is_high[hurt]
    parts = decompose_groups(rewards, is_high, p)
    exact = variance_parts(5, p, 0.9, 0.3)
    assert parts["between"] == pytest.approx(exact[0], abs=2e-3)
    assert parts["within"] == pytest.approx(exact[1], abs=2e-3)
    assert parts["bound"] < 1e-3 < parts["between"]
    assert decompose_groups(helped)["sigma2"] == pytest.approx(sum(exact), abs=2e-3)


def test_groups_that_are_no_groups_of_0_and_1_are_an_error():
    with pytest.raises(ValueError, match="each 0 or 1"):
        decompose_groups([[0.5, 1.0]])
    with pytest.raises(ValueError, match="give one for each"):
        decompose_groups([[0, 1]], [[True]])


# Signal


def naive_parts(rewards, is_high, means):
    """One group, by loops over its members."""
    size, within = len(rewards), []
    for j in range(size):
        own = [i for i in range(size) if is_high[i] == is_high[j]]
        if means == "group":
            within.append(rewards[j] - np.mean([rewards[i] for i in own]))
        else:
            others = [i for i in own if i != j]
            full = rewards[j] - np.mean(rewards)
            mean = np.mean([rewards[i] for i in others]) if others else None
            within.append(full if mean is None else (size - 1) / size * (rewards[j] - mean))
    return np.array(within)


@pytest.mark.parametrize("means", ["group", "others"])
def test_advantage_parts_are_those_of_a_loop(means):
    rewards, is_high = simulate_groups(5, 0.4, 0.7, 0.3, 50, rng(5, "test-parts"))
    parts = advantage_parts(rewards, is_high, means=means)
    for group in range(50):
        expected = naive_parts(rewards[group], is_high[group], means)
        assert parts["within"][group] == pytest.approx(expected, abs=1e-12)
    assert parts["between"] + parts["within"] == pytest.approx(parts["full"], abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_means_of_the_group_move_a_share_of_order_one_over_g(size):
    weights = gradient_weights(size, 0.5, 0.6, 0.1)
    expected = (0.5 - 0.5**size) / (0.5 * (size - 1))
    for token in (0, 1):
        assert weights["full"][token] == pytest.approx((size - 1) / size / 2)
        share = weights["between"][token] / weights["full"][token]
        assert share == pytest.approx(expected)


def test_scaled_by_sigma_stratified_tokens_weigh_the_two_tokens_differently():
    stratified = gradient_weights(5, 0.5, 0.9, 0.3, kind="stratified", scale="group")["full"]
    assert stratified[0] != pytest.approx(stratified[1], abs=1e-3)


def test_where_the_token_decides_the_reward_there_is_variance_and_no_gradient():
    sure = np.array([[40.0, 0.0], [0.0, 40.0]])
    parts = bandit_gradients(sure, [1, 0], 0.5, 4, scale="group")
    assert sum(variance_parts(4, 0.5, 1, 0)) == pytest.approx(kappa(4, 0.5))
    assert max(square for _, square in parts.values()) < 1e-12


def test_the_mean_over_tokens_turns_the_contrast_into_a_pressure_on_length():
    lengths = np.array([2.0, 5.0, 9.0])
    between, _ = bandit_gradients(LOGITS, REWARDS, 0.3, 4, means=tuple(MU), lengths=lengths)[
        "between"
    ]
    pressure = POLICY * (1 / lengths - (POLICY @ (1 / lengths))[:, None])
    expected = kappa(4, 0.3) * (MU[0] - MU[1]) * np.array([[1], [-1]]) * pressure
    assert between == pytest.approx(expected, abs=1e-12) and abs(between).max() > 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kappa(5, 1.5), "p_high is 1.5"),
        (lambda: kappa(0, 0.5), "group_size 0"),
        (lambda: kappa(5, 0.5, "other"), "kind 'other'"),
        (lambda: variance_parts(5, 0.5, 2, 0), "mu_high is 2"),
        (lambda: all_equal_bounds(5, 3, -1), "eps -1"),
        (lambda: trajectory_probabilities([]), "no steps"),
        (lambda: trajectory_probabilities([[0.5, 0.6]]), "no distribution"),
    ],
)
def test_what_is_out_of_range_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
