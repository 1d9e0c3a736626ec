"""The walk over ragged groups, put into the source of the family's kernels (see ``seeds.inlined``)."""

import jax
import jax.numpy as jnp


def running_sum(values):
    """Inclusive sums of an int32 vector."""
    place = jnp.arange(values.shape[0])
    return jnp.sum(jnp.where(place[:, None] >= place[None, :], values[None, :], 0), axis=1)


def visits(sizes, rows, tile, empty):
    """Tables (tile, group, low, high), [rows // tile + groups - 1] int32: one visit a tile and group that meet.

    Rows ``low`` to ``high`` of the tile belong to the group. Visits are in order of rows; empty groups get one of no
    rows if ``empty``. What is left over repeats the last visit with no rows. Last comes how many visits there are.
    """
    groups = sizes.shape[0]
    tiles = rows // tile
    end = running_sum(sizes)
    begin = end - sizes
    first = jnp.minimum(jax.lax.div(begin, tile), tiles - 1)
    last = jax.lax.div(jnp.maximum(end - 1, 0), tile)
    count = jnp.where(sizes > 0, last - first + 1, 1 if empty else 0)
    stop = running_sum(count)
    number = jnp.arange(tiles + groups - 1)
    total = jnp.sum(count)
    held = jnp.minimum(number, total - 1)
    group = jnp.sum(jnp.where(stop[None, :] <= held[:, None], 1, 0), axis=1)
    chosen = group[:, None] == jnp.arange(groups)[None, :]

    def of_group(values):
        return jnp.sum(jnp.where(chosen, values[None, :], 0), axis=1)

    place = of_group(first) + held - of_group(stop - count)
    low = jnp.clip(of_group(begin) - place * tile, 0, tile)
    high = jnp.clip(of_group(end) - place * tile, 0, tile)
    return place, group, low, jnp.where(number < total, high, low), total


def border(group, total):
    """Tables (first, last) of 1 and 0: whether one of the ``total`` visits is the first or the last of its group."""
    changed = jnp.where(group[1:] != group[:-1], 1, 0)
    end = jnp.zeros((1,), jnp.int32)
    at_end = jnp.where(jnp.arange(group.shape[0]) == total - 1, 1, 0)
    return jnp.concatenate([end + 1, changed]), jnp.maximum(jnp.concatenate([changed, end]), at_end)
