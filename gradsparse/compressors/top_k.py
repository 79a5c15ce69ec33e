"""Top-k: the coordinates of largest magnitude, of each leaf or of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from gradsparse import selection
from gradsparse.delivery import Space
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Codec
from gradsparse.interfaces import Compressor
from gradsparse.schedules import DensitySchedule
import jax
import jax.numpy as jnp

Density = float | jax.Array | Callable[[Any], jax.Array]

SCOPES = ('leaf', 'global')

# Sizes of message for a density that is known at run time only, unless the
# schedule lists its own.
_LADDER = (0.001, 0.004, 0.015625, 0.0625, 0.25, 1.0)


def top_k(
  density: Density,
  codec: Codec,
  *,
  scope: str = 'leaf',
  sample_rate: float | None = None,
  name: str = 'top_k',
  dense_1d: bool = False,
) -> Compressor:
  """The k = ceil(density n) entries of largest magnitude.

  Args:
    density: fraction of the elements, in (0, 1]; a float, a schedule of the
      step, or a traced scalar. Unless it is a float, the program holds one
      message size for each rung of a ladder (see `DensitySchedule`).
    codec: how the selection travels.
    scope: 'leaf' selects k_i of each leaf, 'global' k of all together.
    sample_rate: None selects exactly; otherwise the fraction of elements from
      which DGC's threshold is estimated, in (0, 1]; about k are sent then, at
      most ceil(1.3 k) (see `selection.sampled_top_k`).
    name: of the scheme, for tables.
    dense_1d: whether leaves of fewer than two dimensions stay dense.

  Raises:
    ValueError: density, scope or sample_rate out of range.
  """
  selection.check_density(density)
  if scope not in SCOPES:
    raise ValueError(f'scope must be one of {SCOPES}, got {scope!r}')
  if sample_rate is not None and not 0 < sample_rate <= 1:
    raise ValueError(f'sample_rate must be in (0, 1], got {sample_rate}')
  ladder: tuple[float, ...]
  static = not callable(density) and not isinstance(density, jax.Array)
  if static:
    ladder = (cast(float, density),)
  elif isinstance(density, DensitySchedule):
    ladder = density.ladder
  else:
    ladder = _LADDER

  def current(step: jax.Array) -> jax.Array:
    return jnp.asarray(density(step) if callable(density) else density)

  def choose(signals, shared, ctx):
    del signals, shared
    # A density of 0.25 that arrives as float32 must find the rung 0.25.
    reach = jnp.asarray(ladder, jnp.float32) * (1 + 1e-6)
    return jnp.minimum(
      jnp.sum(reach < current(ctx.step)), len(ladder) - 1
    ).astype(jnp.int32)

  def at_step(step: int | None) -> int | None:
    if static:
      return 0
    if not callable(density):
      return None
    with jax.ensure_compile_time_eval():
      now = float(density(2**31 - 1 if step is None else step))
    fits = [r for r, d in enumerate(ladder) if d * (1 + 1e-6) >= now]
    return fits[0] if fits else len(ladder) - 1

  def select(x, ctx, number):
    size = x.shape[0]
    most = selection.count(ctx.rung, size)
    k: int | jax.Array = most
    if not static:
      k = jnp.minimum(selection.traced_count(current(ctx.step), size), most)
    if sample_rate is not None:
      key = jax.random.fold_in(ctx.key, number)
      return selection.sampled_top_k(x, k, sample_rate, key, most=most)
    values, indices = selection.top_k(x, most, ranked=not static)
    if static:
      return values, indices
    wanted = jnp.arange(most) < k  # the largest come first
    return jnp.where(wanted, values, 0.0), jnp.where(wanted, indices, size)

  def encode(signals, shared, ctx):
    del shared
    leaves = [s.value.reshape(-1) for s in signals]
    total = sum(x.shape[0] for x in leaves)
    if scope == 'global':
      joined = leaves[0] if len(leaves) == 1 else jnp.concatenate(leaves)
      values, indices = select(joined, ctx, 0)
      count = indices.shape[0]
      limits = tuple(min(count, x.shape[0]) for x in leaves)
      return Sparse(values, indices, Space(ctx.shapes, limits))
    parts: list[jax.Array] = []
    places: list[jax.Array] = []
    widths: list[int] = []
    offset = 0
    for number, x in enumerate(leaves):
      v, i = select(x, ctx, number)
      parts.append(v)
      places.append(jnp.where(i < x.shape[0], i + offset, total))
      widths.append(v.shape[0])
      offset += x.shape[0]
    return Sparse(
      jnp.concatenate(parts),
      jnp.concatenate(places),
      Space(ctx.shapes, tuple(widths)),
    )

  return Compressor(
    name=name,
    encode=encode,
    codec=codec,
    rungs=lambda shapes: ladder,
    choose=None if static else choose,
    at_step=at_step,
    dense_1d=dense_1d,
    joined=scope == 'global',
  )
