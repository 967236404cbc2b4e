"""Draws depend on their address alone."""

import numpy as np
import pytest

from rc_lib.seeding import rng, stable_id


def test_a_draw_does_not_depend_on_what_was_drawn_before():
    rng(0, "other").random(100)
    first = rng(3, "tokens", 5, 1).random(4)
    np.random.seed(99)
    assert np.array_equal(first, rng(3, "tokens", 5, 1).random(4))


def test_every_part_of_the_address_changes_the_draw():
    addresses = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 0, 1)]
    draws = {rng(*address).integers(2**62) for address in addresses}
    assert len(draws) == len(addresses)


@pytest.mark.parametrize("address", [(-1, "a"), (0, "a", -2)])
def test_negative_parts_are_refused(address):
    with pytest.raises(ValueError, match="must not be negative"):
        rng(*address)


def test_stable_id_is_the_published_crc32():
    assert stable_id("123456789") == 0xCBF43926
