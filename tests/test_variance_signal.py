"""The parts of an advantage and the gradient that each carries, by enumeration of a bandit."""

import numpy as np
import pytest

from rc_lib.advantage import group_advantages
from rc_lib.variance import KINDS
from rc_lib.variance_signal import (
    PARTS,
    SCALES,
    advantage_parts,
    bandit_gradients,
    gradient_weights,
)

LOGITS = np.array([[1.5, 0.0], [0.2, 0.0]])
REWARDS = [1.0, 0.0]
POLICY = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
MU = tuple(POLICY[:, 0])
# Gradient of each token's mean reward in its own logits: pi (R - mu).
SIGNAL = POLICY * (np.array(REWARDS) - (POLICY @ REWARDS)[:, None])


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("means", ["group", "others", MU])
def test_the_parts_add_up_to_the_trainers_advantage(scale, means):
    draws = np.random.default_rng(0)
    rewards, is_high = draws.integers(0, 2, (40, 5)), draws.integers(0, 2, (40, 5)) == 1
    parts = advantage_parts(rewards, is_high, scale=scale, eps=1e-6, means=means)
    groups = np.repeat(np.arange(40), 5)
    expected = group_advantages(rewards.ravel(), groups, scale=scale).reshape(40, 5)
    assert parts["full"] == pytest.approx(expected)
    assert parts["between"] + parts["within"] == pytest.approx(parts["full"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("means", ["group", "others", MU])
def test_the_weights_give_the_gradient_of_an_enumerated_bandit(kind, scale, means):
    options = {"kind": kind, "scale": scale, "means": means}
    weights = gradient_weights(3, 0.4, *MU, **options)
    enumerated = bandit_gradients(LOGITS, REWARDS, 0.4, 3, **options)
    for part in PARTS:
        expected = np.array(weights[part])[:, None] * SIGNAL
        assert enumerated[part][0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("means", ["others", MU])
def test_the_contrast_between_tokens_is_noise_without_signal(kind, means):
    mean, square = bandit_gradients(LOGITS, REWARDS, 0.5, 3, kind=kind, means=means)["between"]
    assert np.abs(mean).max() < 1e-12 < square


def test_scaled_iid_advantages_weigh_both_tokens_alike_whatever_their_gap():
    high, low = gradient_weights(5, 0.5, 0.9, 0.3, scale="group")["full"]
    same, _ = gradient_weights(5, 0.5, 0.6, 0.6, scale="group")["full"]
    assert high == pytest.approx(low) == pytest.approx(same)


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="scale 'batch'"):
        advantage_parts([[1, 0]], [[True, False]], scale="batch")
    with pytest.raises(ValueError, match="means 'all'"):
        advantage_parts([[1, 0]], [[True, False]], means="all")
    with pytest.raises(ValueError, match="use fewer actions or members"):
        bandit_gradients(np.zeros((2, 10)), np.ones(10), 0.5, 6)
