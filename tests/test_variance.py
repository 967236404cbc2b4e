"""Propositions 4.2 and 4.3: exact formulas against enumeration and simulation."""

from itertools import product

import numpy as np
import pytest

from rc_lib.conditioning import Conditioning
from rc_lib.variance import (
    GRID,
    KINDS,
    all_equal_bounds,
    all_equal_probability,
    degenerate_probability,
    kappa,
    mixed_degenerate_probability,
    monte_carlo,
    token_count_pmf,
    trajectory_probabilities,
    variance_parts,
)


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


@pytest.mark.parametrize("kind", KINDS)
def test_simulated_groups_agree_within_their_own_error(kind):
    made = monte_carlo(GRID, kind, groups=2000, seed=0)
    expected = 2000 * made["degenerate"] * (1 - made["degenerate"])
    kept = {"sigma2": expected >= 0, "degenerate": expected >= 5}  # a standard error needs events
    for name, chosen in kept.items():
        off = np.abs(made[f"{name}_z"][chosen])
        assert len(off) >= 200
        # Of 240 right values 0.65 are expected beyond three standard errors.
        assert (off > 3).sum() <= 4 and off.max() < 5
        assert off.mean() > 0.3  # the simulation is not the formula


def test_the_papers_oracles():
    assert kappa(5, 0.5) == pytest.approx(0.2)
    assert variance_parts(5, 0.5, 1, 0) == (pytest.approx(0.2), 0.0)
    assert degenerate_probability(5, 0.5, 1, 0) == 0.0625
    assert sum(variance_parts(5, 0.5, 0.95, 0.95)) == pytest.approx(0.038)
    assert degenerate_probability(5, 0.5, 0.95, 0.95) == pytest.approx(0.7738, abs=1e-4)


@pytest.mark.parametrize(("size", "p_high", "mu_high", "mu_low"), GRID[::7])
def test_the_variance_is_never_below_the_bound_and_iid_tokens_make_a_bernoulli_group(
    size, p_high, mu_high, mu_low
):
    between, within = variance_parts(size, p_high, mu_high, mu_low)
    q = p_high * mu_high + (1 - p_high) * mu_low
    assert between + within >= kappa(size, p_high) * (mu_high - mu_low) ** 2
    assert between + within == pytest.approx((size - 1) / size * q * (1 - q))
    stratified = sum(variance_parts(size, p_high, mu_high, mu_low, kind="stratified"))
    assert stratified >= between + within - 1e-12


@pytest.mark.parametrize("p_high", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_of_the_high_tokens_is_the_one_that_the_trainer_draws_from(kind, p_high):
    conditioning = Conditioning(kind, p_high=p_high)
    counts = [conditioning.tokens(0, 0, group, 5).count("high") for group in range(2000)]
    seen = np.bincount(counts, minlength=6) / 2000
    assert seen == pytest.approx(token_count_pmf(5, p_high, kind), abs=0.05)


def test_all_equal_is_bounded_by_the_proposition_and_the_linear_bound_can_be_vacuous():
    steps = [[0.97, 0.03], [[0.95, 0.05], [0.5, 0.5]], [0.9, 0.1]]
    reference = [-np.log(0.97), -np.log(0.95), -np.log(0.9)]
    exact = all_equal_probability(steps, 5, [0, 0, 0])
    assert exact == pytest.approx((0.97 * 0.95 * 0.9) ** 5)
    assert exact == pytest.approx(all_equal_bounds(5, 3, np.mean(reference)).exponential)
    bounds = all_equal_bounds(5, 3, max(reference))
    assert bounds.linear <= 0 < bounds.exponential < exact < all_equal_probability(steps, 5)
    assert trajectory_probabilities(steps).sum() == pytest.approx(1.0)


def test_tasks_that_differ_make_more_degenerate_groups_than_one_q():
    shares = np.array([0.1, 0.9])  # half the tasks each
    sigma2 = float(np.mean([sum(variance_parts(5, 0.5, q, q)) for q in shares]))
    truth = float(np.mean([degenerate_probability(5, 0.5, q, q) for q in shares]))
    one_q = degenerate_probability(5, 0.5, 0.5, 0.5)
    assert one_q < mixed_degenerate_probability(5, 0.5, sigma2)
    assert mixed_degenerate_probability(5, 0.5, sigma2) == pytest.approx(truth, abs=0.08)


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
