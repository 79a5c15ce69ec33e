"""Top-k: the coordinates of largest magnitude, of each leaf or of all."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any, cast

from gradsparse import arguments
from gradsparse import schedules
from gradsparse import selection
from gradsparse.delivery import Space
from gradsparse.delivery import Sparse
from gradsparse.interfaces import Codec
from gradsparse.interfaces import Compressor
import jax
import jax.numpy as jnp

Density = float | jax.Array | Callable[[Any], jax.Array]

SCOPES = ('leaf', 'global')


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
      message size for each rung of a ladder (`schedules.ladder_of`).
    codec: how the selection travels.
    scope: 'leaf' selects k_i of each leaf, 'global' k of all together.
    sample_rate: None selects exactly; otherwise the fraction of elements from
      which DGC's threshold is estimated, in (0, 1]; about k are sent then, at
      most ceil(1.3 k) (see `selection.sampled_top_k`).
    name: of the scheme, for tables.
    dense_1d: whether leaves of fewer than two dimensions stay dense.

  Raises:
    TypeError: an argument of the wrong kind; from init: a schedule that
      returns no number.
    ValueError: density, scope or sample_rate out of range; from init: the
      schedule's density at step 0 is. Where a later one is, or a traced
      density, all workers reject the step.
  """
  density = arguments.density(density)
  arguments.one_of('scope', scope, SCOPES)
  if sample_rate is not None:
    sample_rate = arguments.number(
      'sample_rate', sample_rate, arguments.FRACTION
    )
  static = not callable(density) and not isinstance(density, jax.Array)

  # Asked for late: a schedule may be called only once JAX may start, which
  # jax.distributed.initialize wants to come before.
  @functools.cache
  def ladder() -> tuple[float, ...]:
    if static:
      return (cast(float, density),)
    return schedules.ladder_of(cast(Any, density))

  def current(step: jax.Array) -> jax.Array:
    return jnp.asarray(density(step) if callable(density) else density)

  def rung_at(step: jax.Array) -> jax.Array:
    # A density of 0.25 that arrives as float32 must find the rung 0.25.
    reach = jnp.asarray(ladder(), jnp.float32) * (1 + 1e-6)
    number = jnp.sum(reach < current(step))
    return jnp.minimum(number, len(ladder()) - 1).astype(jnp.int32)

  def choose(signals, shared, ctx):
    del signals, shared
    return rung_at(ctx.step)

  def usable(step: jax.Array) -> jax.Array:
    now = current(step)
    return (now > 0) & (now <= 1)

  def scheduled(step: int) -> Any:
    """The schedule's density at a step, outside of a program."""
    assert callable(density)
    with jax.ensure_compile_time_eval():
      now = density(jnp.int32(step))
    name = f'density (of the schedule, at step {step})'
    return arguments.number(name, now, arguments.FRACTION, traced=True)

  def at_step(step: jax.Array) -> jax.Array:
    if not isinstance(step, jax.core.Tracer):
      scheduled(int(step))
    return rung_at(step)

  def init(shapes):
    del shapes
    if callable(density):
      scheduled(0)
    return ()

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
    rungs=lambda shapes: ladder(),
    choose=None if static else choose,
    at_step=at_step if callable(density) else None,
    dense_1d=dense_1d,
    joined=scope == 'global',
    init=init,
    usable=None if static else usable,
  )
