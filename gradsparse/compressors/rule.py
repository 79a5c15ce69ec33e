"""Sends what a rule picks out: Strom, the variance criterion, AdaComp.

How many elements satisfy a rule depends on the data. The message has a static
size all the same: one rung of a ladder that all workers choose together, the
smallest that holds what the neediest of them wants to send. What exceeds the
largest rung stays in the memory and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math

from gradsparse import selection
from gradsparse.delivery import Space
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Codec
from gradsparse.interfaces import Compressor
from gradsparse.interfaces import Signal
import jax
import jax.numpy as jnp

# Fractions of the elements that a message can hold.
LADDER = (1 / 1024, 1 / 256, 1 / 64, 1 / 16, 1 / 4)

# (signal of a leaf) -> (values to send, where), both leaf-shaped.
Rule = Callable[[Signal], tuple[jax.Array, jax.Array]]


def check_ladder(ladder: Sequence[float]) -> tuple[float, ...]:
  """Raises ValueError unless fractions in (0, 1] ascend."""
  fractions = tuple(float(f) for f in ladder)
  ascending = all(a < b for a, b in zip(fractions, fractions[1:], strict=False))
  in_range = all(0 < f <= 1 for f in fractions)
  if not fractions or not ascending or not in_range:
    raise ValueError(
      f'ladder must be ascending fractions in (0, 1], got {tuple(ladder)}'
    )
  return fractions


def by_rule(
  rule: Rule,
  codec: Codec,
  *,
  name: str,
  ladder: Sequence[float] = LADDER,
) -> Compressor:
  """Sends the elements of all leaves that satisfy a rule.

  Args:
    rule: which elements of a leaf, and as which values.
    codec: how they travel.
    name: of the scheme, for tables.
    ladder: fractions of the elements that a message can hold, ascending.

  Raises:
    ValueError: a ladder that does not ascend within (0, 1].
  """
  fractions = check_ladder(ladder)

  def rungs(shapes):
    total = sum(math.prod(shape) for shape in shapes)
    slots = {min(total, max(1, math.ceil(f * total))) for f in fractions}
    return tuple(sorted(slots))

  def picks(signal):
    values, where = rule(signal)
    # What is too small to be said beside the largest needs no slot.
    if codec.sendable is not None:
      where = codec.sendable(values, where)
    return values, where

  def satisfied(signals):
    return sum(jnp.sum(picks(s)[1], dtype=jnp.int32) for s in signals)

  def choose(signals, shared, ctx):
    del shared
    sizes = jnp.asarray(rungs(ctx.shapes))
    need = jnp.sum(sizes < satisfied(signals))
    return jnp.minimum(need, sizes.shape[0] - 1).astype(jnp.int32)

  def overflow(signals, shared, ctx):
    del shared
    return jnp.maximum(satisfied(signals) - ctx.rung, 0)

  def encode(signals, shared, ctx):
    del shared
    picked = [picks(s) for s in signals]
    values = jnp.concatenate([v.reshape(-1) for v, _ in picked])
    where = jnp.concatenate([w.reshape(-1) for _, w in picked])
    # Where not all fit, begin at another place each step: otherwise the last
    # leaves would starve.
    indices = selection.where(where, ctx.rung, first=ctx.step * ctx.rung)
    limits = tuple(min(ctx.rung, math.prod(s)) for s in ctx.shapes)
    return Sparse(
      values.at[indices].get(mode='fill', fill_value=0),
      indices,
      Space(ctx.shapes, limits),
    )

  return Compressor(
    name=name,
    encode=encode,
    codec=codec,
    rungs=rungs,
    choose=choose,
    agreed=False,
    overflow=overflow,
    joined=True,
  )


def strom(threshold: float) -> Rule:
  """sign(r) tau where |r| > tau (Strom 2015)."""

  def rule(signal):
    r = signal.value
    return jnp.where(r < 0, -threshold, threshold), jnp.abs(r) > threshold

  return rule


def variance(alpha: float) -> Rule:
  """r where r^2 > alpha v (Tsuzuku et al., eq. 3)."""

  def rule(signal):
    r = signal.value
    return r, r * r > alpha * signal.moment

  return rule


def variance_strom(alpha: float, threshold: float) -> Rule:
  """sign(r) tau where |r| > tau and r^2 > alpha v (section 4.5)."""

  def rule(signal):
    values, large = strom(threshold)(signal)
    _, unambiguous = variance(alpha)(signal)
    return values, large & unambiguous

  return rule


def ada_comp(bin_size: int | None = None) -> Rule:
  """sign(G) times the mean of the bin maxima, where |H| >= max |G| of its bin.

  G = R + dW is the residue with this step's gradient, H = G + dW. The scale
  is the mean over the leaf's bins of max |G|.

  Args:
    bin_size: elements a bin; None is 50 for leaves of three or more
      dimensions (convolutions) and 500 otherwise.

  References:
    Chen et al., AAAI 2018, arXiv 1712.02679, algorithm 2.
  """

  def rule(signal):
    g = signal.value
    length = bin_size or (50 if g.ndim >= 3 else 500)
    rows = selection.rows(g, length)
    tops = jnp.max(jnp.abs(rows), axis=1)
    ahead = selection.rows(g + signal.gradient, length)
    where = (jnp.abs(ahead) >= tops[:, None]) & (rows != 0)
    flat = where.reshape(-1)[: g.size]
    return jnp.sign(g) * jnp.sum(tops / tops.shape[0]), flat.reshape(g.shape)

  return rule
