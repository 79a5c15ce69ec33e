"""Top-k: the entries of largest magnitude of each leaf, or of all leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from gradsparse import arguments
from gradsparse import schedules
from gradsparse import selection
from gradsparse import traced
from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import Ladder
from gradsparse.sockets import LeafRule
from gradsparse.sockets import Leaves
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
import jax
import jax.numpy as jnp

Density = float | jax.Array | Callable[[Any], jax.Array]

SCOPES = ('leaf', 'global', 'chunk', 'tile')


def top_k(
  density: Density,
  code: Code,
  *,
  scope: str = 'leaf',
  chunk_size: int = 4096,
  tile: int = 64,
  sample_rate: float | None = None,
  name: str = 'top_k',
) -> Compressor:
  """Selects the k = ceil(density n) entries of largest magnitude.

  With a scope other than 'global', leaves of fewer than two dimensions stay
  dense by default.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> extend, x = gs.extend, jnp.array([3.0, -1.0, 0.5, -4.0])
  >>> compressor = extend.compressors.top_k(0.5, extend.codes.sparse())
  >>> ctx = extend.Context(extend.MessageLeaves((x.shape,)), 1, 0, None, None)
  >>> sent = compressor.select([extend.Signal(x, x)], ctx)
  >>> print(sent.values, sent.indices)
  [ 3. -4.] [0 3]

  Args:
    density: fraction of the elements, in (0, 1]; a float, a schedule of the
      step, or a traced scalar. Unless it is a float, the program holds one
      message size for each rung of a ladder (`schedules.ladder_of`).
    code: the code of the entries.
    scope: the scope of a selection of k entries: 'leaf' is each leaf, 'global'
      all leaves together, 'chunk' each chunk of `chunk_size` elements of a
      leaf, 'tile' each tile of a leaf.
    chunk_size: elements of a chunk; the last chunk of a leaf may be shorter.
    tile: the longest side of a tile, see `selection.tiled_top_k_of_each`.
    sample_rate: None selects exactly. Otherwise the fraction of elements from
      which DGC's threshold is estimated, in (0, 1]; about k are sent then, at
      most ceil(1.3 k) (see `selection.sampled_top_k_of_each`). Not with scope
      'chunk' or 'tile'.
    name: the scheme's name, for tables.

  Raises:
    TypeError: an argument is of the wrong kind; from init: the schedule does
      not return a number.
    ValueError: an argument is out of range; from init: the schedule's density
      at step 0 is out of range. If a later or a traced density is out of range,
      all workers reject the step.
  """
  density = arguments.density(density)
  arguments.one_of('scope', scope, SCOPES)
  # With another scope, chunk_size has no effect and may be traced: by default,
  # optax.inject_hyperparams traces every number.
  if scope == 'chunk' or not isinstance(chunk_size, jax.Array):
    chunk_size = arguments.whole_number('chunk_size', chunk_size, 1)
  if scope == 'tile' or not isinstance(tile, jax.Array):
    tile = arguments.whole_number('tile', tile, 1)
  if sample_rate is not None:
    sample_rate = arguments.number(
      'sample_rate', sample_rate, arguments.FRACTION
    )
    if scope in ('chunk', 'tile'):
      raise ValueError(
        f'sample_rate must be None with scope={scope!r}, whose {scope}s are '
        f'small enough to be selected exactly, got {sample_rate}'
      )
  static = not callable(density) and not isinstance(density, jax.Array)
  # Whether every slot of a message is filled.
  full = static or isinstance(density, schedules.DensitySchedule)

  def select(signals, ctx):
    arrays = [s.value for s in signals]
    leaves = [x.reshape(-1) for x in arrays]
    rung = cast(float, density) if static else ctx.rung
    now = None if full else _current(density, ctx.step)
    if scope == 'tile':
      values, indices, limits = selection.tiled_top_k_of_each(
        arrays, rung, tile, now
      )
      return Sparse(values, indices, Space(ctx.shapes, tuple(limits)))
    if scope == 'chunk':
      values, indices, limits = selection.chunked_top_k_of_each(
        leaves, rung, chunk_size, now, [s.found for s in signals]
      )
      space = Space(ctx.shapes, tuple(limits))
      # If a schedule leaves slots empty, these come last.
      each = (chunk_size, selection.count(rung, chunk_size)) if full else None
      return Sparse(values, indices, space, each)
    # The scope of a selection: each leaf, or all leaves together.
    together = scope == 'global'
    sizes = [x.shape[0] for x in leaves]
    totals = [sum(sizes)] if together else sizes
    counts = [selection.count(rung, size) for size in totals]
    if now is not None:
      now = selection.traced_count(now, jnp.asarray(totals))
      now = jnp.minimum(now, jnp.asarray(counts))
    if sample_rate is not None:
      vectors = [Leaves(leaves).joined()] if together else leaves
      key = jax.random.fold_in(ctx.key, 0)
      entries = selection.sampled_top_k_of_each(
        vectors, counts, sample_rate, key, now
      )
      counts = [
        selection.capacity(k, size)
        for k, size in zip(counts, totals, strict=True)
      ]
    elif together:
      first = None if now is None else now[0]
      entries = selection.top_k_of_all(arrays, counts[0], first)
    else:
      entries = selection.top_k_of_each(arrays, counts, now)
    if together:
      space = Space.at_most(counts[0], ctx.shapes)
    else:
      space = Space(ctx.shapes, tuple(counts))
    return Sparse(*entries, space)

  return Compressor(
    name,
    select,
    code,
    leaves=LeafRule(dense_1d=scope != 'global'),
    ladder=None if static else _ladder(density),
    selects_globally=scope == 'global',
    per_chunk=(
      (chunk_size, lambda size: selection.count(cast(float, density), size))
      if static and scope == 'chunk'
      else None
    ),
  )


def _current(density: Any, step: Any) -> jax.Array:
  """The density in this step."""
  return jnp.asarray(
    _scheduled(density, step) if callable(density) else traced.here(density)
  )


def _scheduled(density: Callable[[Any], Any], step: Any) -> Any:
  """What a schedule returns at this step.

  Raises:
    TypeError: the schedule is no function of one traced number.
  """
  try:
    return density(step)
  except (TypeError, jax.errors.ConcretizationTypeError) as e:
    raise TypeError(
      'density must be a function of one traced step, such as lambda step: '
      f'jnp.where(step < 100, 0.1, 0.01), got {density!r}: {e}'
    ) from e


def _ladder(density: Any) -> Ladder:
  """The message sizes of a density that is a schedule or traced."""
  # Computed late: calling the schedule starts JAX, and a program of several
  # processes must call jax.distributed.initialize first.
  # A list, as cloudpickle cannot copy a functools.cache of a local function.
  found: list[tuple[float, ...]] = []

  def rungs() -> tuple[float, ...]:
    if not found:
      found.append(schedules.ladder_of(density))
    return found[0]

  def rung_at(step: jax.Array) -> jax.Array:
    # A float32 density of 0.25 must match the rung 0.25.
    reach = jnp.asarray(rungs(), jnp.float32) * (1 + 1e-6)
    number = jnp.sum(reach < _current(density, step))
    return jnp.minimum(number, len(rungs()) - 1).astype(jnp.int32)

  def usable(step: jax.Array) -> jax.Array:
    now = _current(density, step)
    return (now > 0) & (now <= 1)

  def at_step(step: jax.Array) -> jax.Array:
    if not isinstance(step, jax.core.Tracer):
      # Training traces the schedule. What it returns is checked below.
      jax.make_jaxpr(lambda step: (_scheduled(density, step), 0)[1])(0)
      with jax.ensure_compile_time_eval():
        now = _scheduled(density, jnp.int32(step))
      name = f'density (of the schedule, at step {int(step)})'
      arguments.number(name, now, arguments.FRACTION, traced=True)
    return rung_at(step)

  return Ladder(
    rungs=lambda shapes: rungs(),
    choose=lambda ctx: rung_at(ctx.step),
    agreed=True,
    at_step=at_step if callable(density) else None,
    usable=usable,
  )
