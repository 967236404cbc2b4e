"""Addressed randomness: a draw depends on what it is for, never on what was drawn before.

A generator is made from (run seed, purpose, address), so neither batching, the number of
workers nor a resumed run changes a result.
"""

import random
import zlib

import numpy as np


def stable_id(text: str) -> int:
    """Map a string to an int in [0, 2**32), the same in every process and version.

    >>> stable_id("multi_turn_base_0")
    1664779831
    """
    return zlib.crc32(text.encode())


def rng(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """Return the generator that belongs to one purpose and address of a run.

    Args:
        seed: run seed, >= 0.
        purpose: what the draws are for, e.g. ``"tokens"``.
        address: non-negative ints such as step, group and member.

    Raises:
        ValueError: if the seed or an address is negative.

    >>> a = rng(0, "tokens", 3, 1).random()
    >>> a == rng(0, "tokens", 3, 1).random(), a == rng(0, "tokens", 3, 2).random()
    (True, False)
    """
    if seed < 0 or any(part < 0 for part in address):
        raise ValueError(f"seed {seed} and address {address} must not be negative")
    # The length keeps (0,) and (0, 0) apart: SeedSequence reads missing words as zeros.
    entropy = np.random.SeedSequence([seed, stable_id(purpose), len(address), *address])
    return np.random.Generator(np.random.Philox(entropy))


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, for library code that draws from their global state.

    >>> seed_everything(0)
    """
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
