"""Intervals, tests and power against other libraries, naive loops and simulation."""

import numpy as np
import pytest
from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from rc_lib import stats
from rc_lib.seeding import rng


@pytest.mark.parametrize(("k", "n"), [(0, 80), (9, 80), (48, 80), (80, 80), (1, 1), (3, 240)])
def test_wilson_equals_statsmodels_and_scipy(k, n):
    expected = proportion_confint(k, n, method="wilson")
    assert stats.wilson(k, n) == pytest.approx(expected, abs=1e-12)
    scipy_interval = binomtest(k, n).proportion_ci(0.9, method="wilson")
    assert stats.wilson(k, n, level=0.9) == pytest.approx(tuple(scipy_interval), abs=1e-9)


@pytest.mark.parametrize(
    ("k", "n", "level"), [(-1, 5, 0.95), (6, 5, 0.95), (0, 0, 0.95), (1, 2, 95)]
)
def test_wilson_refuses_impossible_counts_and_levels(k, n, level):
    with pytest.raises(ValueError, match=r"give n >= 1|share in"):
        stats.wilson(k, n, level)


def test_mcnemar_equals_statsmodels_on_the_full_table():
    draw = rng(0, "test")
    for _ in range(20):
        first, second = draw.integers(0, 2, (2, 40))
        table = np.zeros((2, 2), int)
        np.add.at(table, (1 - first, 1 - second), 1)
        result = stats.mcnemar(first, second)
        assert (result.b, result.c) == (table[0, 1], table[1, 0])
        assert result.p == pytest.approx(statsmodels_mcnemar(table, exact=True).pvalue)
        assert result.p == pytest.approx(binomtest(result.b, result.b + result.c).pvalue)


def test_mcnemar_of_equal_arms_has_p_one():
    assert stats.mcnemar([1, 0, 1], [1, 0, 1]) == (0, 0, 1.0)


@pytest.mark.parametrize(("first", "second"), [([1], [1, 0]), ([], []), ([2], [1]), ([0.5], [1])])
def test_mcnemar_refuses_what_is_not_paired_zeros_and_ones(first, second):
    with pytest.raises(ValueError, match=r"same n|0 or 1"):
        stats.mcnemar(first, second)


def test_holm_equals_statsmodels_and_a_naive_loop():
    pvalues = rng(1, "test").random(7) ** 3
    adjusted = stats.holm(pvalues)
    running, naive = 0.0, np.empty(7)
    for rank, i in enumerate(np.argsort(pvalues)):
        running = max(running, min(1.0, (7 - rank) * pvalues[i]))
        naive[i] = running
    assert adjusted == pytest.approx(naive)
    assert adjusted == pytest.approx(multipletests(pvalues, method="holm")[1])


@pytest.mark.parametrize("pvalues", [[], [0.1, float("nan")], [1.2]])
def test_holm_refuses_what_are_not_p_values(pvalues):
    with pytest.raises(ValueError, match="p-values"):
        stats.holm(pvalues)


def naive_resamples(values, labels, resamples):
    """The definition: draw the seeds, draw the clusters, average the cells that come together."""
    names = sorted(set(labels))
    draw = rng(0, "crossed-bootstrap", len(values), len(names))
    weights = [
        draw.multinomial(size, [1 / size] * size, size=resamples)
        for size in (len(values), len(names))
    ]
    means = []
    for seed_counts, name_counts in zip(*weights, strict=True):
        cells = []
        for s, seed_count in enumerate(seed_counts):
            for name, name_count in zip(names, name_counts, strict=True):
                for i, label in enumerate(labels):
                    if label == name:
                        cells += [values[s][i]] * (seed_count * name_count)
        means.append(sum(cells) / len(cells))
    return np.array(means)


@pytest.mark.parametrize("labels", [list("abcdefg"), list("aabbbcd")])
def test_crossed_bootstrap_equals_a_naive_loop(labels):
    values = rng(2, "test").integers(-1, 2, (3, 7))
    result = stats.crossed_bootstrap(values, labels, resamples=200)
    means = naive_resamples(values.tolist(), labels, 200)
    assert result.mean == pytest.approx(values.mean())
    assert (result.low, result.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert result.se == pytest.approx(means.std())
    assert result.p == min(1, 2 * (min((means <= 0).sum(), (means >= 0).sum()) + 1) / 201)


def test_seeds_are_not_pooled_as_independent_trials():
    # Five seeds that agree on every task know no more than one seed.
    row = [1] * 40 + [0] * 40
    five, one = stats.crossed_bootstrap([row] * 5), stats.crossed_bootstrap([row])
    pooled = stats.wilson(200, 400)
    assert five.high - five.low == pytest.approx(one.high - one.low, rel=0.02)
    assert five.high - five.low > 1.8 * (pooled.high - pooled.low)


def test_clusters_that_stand_or_fall_together_widen_the_interval():
    values = np.repeat(rng(3, "test").integers(0, 2, (1, 20)), 4, axis=1)
    labels = np.repeat(np.arange(20), 4)
    clustered, single = stats.crossed_bootstrap(values, labels), stats.crossed_bootstrap(values)
    assert clustered.se == pytest.approx(2 * single.se, rel=0.05)


def test_crossed_bootstrap_covers_the_truth_of_two_random_effects():
    draw, hits = rng(4, "test"), 0
    for _ in range(200):
        seeds, tasks = draw.normal(0, 1, (5, 1)), draw.normal(0, 3, (1, 30))
        values = seeds + tasks + draw.normal(0, 1, (5, 30))
        result = stats.crossed_bootstrap(values, resamples=1000)
        hits += result.low <= 0 <= result.high
    assert 0.88 <= hits / 200 <= 0.99


def test_a_draw_depends_on_the_seed_only():
    values = rng(5, "test").integers(0, 2, (5, 80))
    assert stats.crossed_bootstrap(values) == stats.crossed_bootstrap(values)
    assert stats.crossed_bootstrap(values) != stats.crossed_bootstrap(values, seed=1)


@pytest.mark.parametrize(
    ("values", "clusters"), [([[]], None), ([1, 0], None), ([[1, np.nan]], None), ([[1, 0]], ["a"])]
)
def test_crossed_bootstrap_refuses_missing_cells(values, clusters):
    with pytest.raises(ValueError, match=r"finite|cluster labels"):
        stats.crossed_bootstrap(values, clusters)


def test_arm_without_spread_gets_wilson_over_its_clusters():
    labels = [
        stats.cluster_of(f"multi_turn_{c}_{i}") for c in ("base", "miss_func") for i in range(20)
    ]
    assert stats.arm_interval([[0] * 40] * 5, labels) == stats.wilson(0, 20)
    assert stats.arm_interval([[1] * 40] * 5) == stats.wilson(40, 40)


def test_bfcl_variants_of_one_task_form_a_cluster():
    names = [
        "multi_turn_base_7",
        "multi_turn_long_context_7",
        "multi_turn_base_71",
        "gen_test_base_7",
    ]
    first, second, third, generated = map(stats.cluster_of, names)
    assert first == second and len({first, third, generated}) == 3


@pytest.mark.parametrize("n", [10, 80, 240])
def test_smallest_significant_difference_is_the_first_that_mcnemar_calls(n):
    b = round(stats.smallest_significant_difference(n) * n)
    arms = [[1] * k + [0] * (n - k) for k in (b, b - 1)]
    assert stats.mcnemar(arms[0], [0] * n).p <= 0.05 < stats.mcnemar(arms[1], [0] * n).p


def test_five_tasks_cannot_show_any_difference():
    assert np.isnan(stats.smallest_significant_difference(5))
    assert np.isnan(stats.detectable_difference(5, 1.0))


@pytest.mark.parametrize(("difference", "discordant"), [(0.0, 0.3), (0.15, 0.3), (-0.25, 0.4)])
def test_mcnemar_power_equals_simulation(difference, discordant):
    n, runs = 80, 1000
    shares = [(discordant + difference) / 2, (discordant - difference) / 2, 1 - discordant]
    counts = rng(6, "test").multinomial(n, shares, size=runs)[:, :2]
    pvalues = {tuple(c): binomtest(c[0], c.sum()).pvalue if c.sum() else 1.0 for c in counts}
    simulated = np.mean([pvalues[tuple(c)] <= 0.05 for c in counts])
    exact = stats.mcnemar_power(difference, discordant, n)
    assert exact == pytest.approx(simulated, abs=4 * np.sqrt(0.25 / runs))


def test_detectable_difference_has_the_power_it_promises():
    difference = stats.detectable_difference(80, 0.3)
    assert stats.mcnemar_power(difference, 0.3, 80) >= 0.8
    assert stats.mcnemar_power(difference - 2e-4, 0.3, 80) < 0.8
