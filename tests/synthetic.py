"""Small records of a made-up run, for the tests of tables and figures."""

from itertools import product

import numpy as np
import pandas as pd

from rc_lib.config import ALL_ARMS, ARMS
from rc_lib.records import COLUMNS, DECODINGS, TOKENS, write_per_item
from rc_lib.seeding import rng, stable_id
from rc_lib.tasks.base import CATEGORIES

SETS = {"test": 3, "power": 5, "unseen_wording": 2}  # items of a category


def items(test_set):
    """(item id, category) in the order of test."""
    return [(f"gen_{test_set}_{c}_{i}", c) for c in CATEGORIES for i in range(SETS[test_set])]


def per_item(arm, seed, rate=0.5):
    rows = []
    for decoding, token, test_set in product(DECODINGS, TOKENS, SETS):
        address = [stable_id(word) for word in (arm, decoding, token, test_set)]
        draws = rng(seed, "synthetic", *address).random((len(items(test_set)), 5)) < rate
        for (item, category), parts in zip(items(test_set), draws.astype(int), strict=True):
            labels = ["tiny", "tiny-base", arm, seed, token, decoding, test_set, item, category]
            rows.append([*labels, *parts])
    return pd.DataFrame(rows, columns=COLUMNS)


def curve(arm, seed, steps=8):
    draw = rng(seed, "synthetic-curve", stable_id(arm))
    names = ["reward", "mu_high", "mu_low", "sigma2", "degenerate", "entropy", "kl", "grad_norm"]
    table = pd.DataFrame(draw.random((steps, len(names))), columns=names)
    if "rc_grpo" not in arm:
        table[["mu_high", "mu_low"]] = np.nan
    return table.rename_axis("step").reset_index()


def write_records(root, seeds=(0, 1), arms=ALL_ARMS):
    for seed, arm in product(seeds, arms):
        write_per_item(per_item(arm, seed), root / f"seed{seed}" / arm / "per_item.csv")
        # Stage 1 has curves of its own, with other columns.
        table = curve(arm, seed) if arm in ARMS else pd.DataFrame({"step": [0], "loss": [1.0]})
        table.to_csv(root / f"seed{seed}" / arm / "curve.csv", index=False)
    return root
