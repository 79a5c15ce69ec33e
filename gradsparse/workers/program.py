"""Which state is whose, and a per-worker step as a program for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any, Literal, get_args

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.sockets import demands
from gradsparse.state.inspection import has_local_params
from gradsparse.transform.sharding import is_spec
from gradsparse.workers import axis
from gradsparse.workers import differing
from gradsparse.workers import runners
from gradsparse.wrappers import local_gradient
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax

Runner = Literal['simulate', 'pmap', 'shard_map']
RUNNERS: tuple[Runner, ...] = get_args(Runner)
AXIS = 'workers'


def params_spec(
  tx: optax.GradientTransformation, params: Any, axis_name: str = AXIS
) -> P:
  """P(axis_name) where a transformation makes parameters differ by worker.

  That is what `gs.local_gradient` does; otherwise P().
  """
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  state = jax.eval_shape(tx.init, params)
  return P(axis_name) if has_local_params(state) else P()


def stack(tree: Any, num_workers: int) -> Any:
  """A copy for each worker, along a leading axis.

  Raises:
    TypeError: num_workers is not a whole number, or a leaf no array.
    ValueError: num_workers is out of range.
  """
  arguments.arrays('tree', tree)
  num_workers = arguments.num_workers(num_workers)
  return jax.tree.map(
    lambda x: jnp.broadcast_to(x, (num_workers, *jnp.shape(x))).copy(), tree
  )


def local(tree: Any, axis_name: AxisName = AXIS) -> Any:
  """Replicated values, typed as this worker's own.

  Differentiate with respect to the result: under `shard_map` the gradient
  with respect to replicated parameters would be summed over the workers by
  JAX, uncompressed, before a scheme sees it. A no-op under other runners.
  """
  return Comm(arguments.axis_name(axis_name)).local(tree)


def mean(tree: Any, axis_name: AxisName = AXIS) -> Any:
  """Mean over workers of a tree of arrays (metrics, batch statistics)."""
  arguments.arrays('tree', tree)
  return Comm(arguments.axis_name(axis_name)).mean(tree)


def specs(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int | Mapping[str, int],
  axis_name: AxisName = AXIS,
  *,
  update_kwargs: Mapping[str, Any] | None = None,
) -> Any:
  """Which leaves of the optimizer state are worker-local.

  With schemes over several axes, each leaf has the axes along which it differs.
  Below, the memory of DGC is the same on all devices of a node:

    tx = optax.chain(gs.dense(axis_name='device'),
                     gs.dgc(0.001, axis_name='node'), optax.sgd(0.1))
    specs = gs.workers.specs(tx, params, {'node': 4, 'device': 8})

  Args:
    tx: any optax transformation with schemes inside.
    params: arrays or ShapeDtypeStructs, without worker axis.
    num_workers: P; or a mapping from axis name to P for several axes, the
      outermost first, as in `parallel`. All axes that the schemes were given
      must be there, one by one also where a scheme has a tuple of them.
    axis_name: the axis that the schemes were given, where num_workers does not
      name several.
    update_kwargs: further arguments of `tx.update`, by name, if it needs
      others than optax's own optimizers do (`value`, `grad`, `value_fn`,
      `obj_fn`, `grad_fn`) and schemes (`second_moment`). They must be the same
      on all workers; of arrays only shape and dtype count.

  Returns:
    A tree like `tx.init(params)` of PartitionSpecs: P(axis_name) for what
    differs between workers, P() for what does not; with several axes
    P('node'), say, or P('node', 'device'), which has two leading axes.

  Raises:
    TypeError: an argument of the wrong kind; or `tx.update` needs one that is
      not in update_kwargs.
    ValueError: some parameters would be updated differently on each worker,
      because no scheme averages them; names the first. Or num_workers is not
      positive; or optax.MultiSteps with several axes.
    NameError: a scheme was given an axis that is not among these.
  """
  axes = axis.axes_of(num_workers, axis_name)
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  sizes = tuple(axes.items())
  leaves, treedef = jax.tree.flatten(axis.shapes(params))
  key = tx, treedef, tuple(leaves), sizes
  try:
    hash(key)
  except TypeError:  # a tree may hold what has no hash
    return _traced(tx, params, sizes, update_kwargs)
  if update_kwargs is not None:
    return _traced(tx, params, sizes, update_kwargs)
  # A tree of its own for each caller.
  found = _remembered(*key, _config())
  return jax.tree.map(lambda spec: spec, found, is_leaf=is_spec)


def _config() -> tuple[Any, ...]:
  """What decides on the types of a program that is traced."""
  names = 'enable_x64', 'numpy_dtype_promotion', 'numpy_rank_promotion'
  return tuple(getattr(jax.config, f'jax_{name}') for name in names)


@functools.lru_cache(maxsize=64)
def _remembered(tx, treedef, leaves, sizes, config):
  """`_traced`, which takes a while, once for the same arguments."""
  del config
  return _traced(tx, jax.tree.unflatten(treedef, leaves), sizes, None)


def _traced(
  tx: optax.GradientTransformation,
  params: Any,
  sizes: tuple[tuple[str, int], ...],
  update_kwargs: Mapping[str, Any] | None,
) -> Any:
  """`specs`, of arguments that are right."""
  axes = dict(sizes)
  # A new function each time: eval_shape caches, and a scheme's `init` must run.
  with demands.heard() as wanted:
    state = jax.eval_shape(lambda p: tx.init(p), params)
  treedef = jax.tree.structure(state)
  update = demands.update_of(tx, wanted, update_kwargs)
  settled = functools.partial(differing.settled, params, state, axes, update)
  varies, updates = settled()
  if has_local_params(state):
    # The updates of gs.local_gradient differ, and no others may.
    with local_gradient.only_means():
      _, updates = settled()
  if updates:
    name, over = updates[0]
    raise ValueError(
      f'the update of {name} differs between workers: no '
      f'gradsparse scheme averages it over axis {over!r}, so workers '
      'would drift apart. Give every parameter a scheme, gs.dense for '
      'instance (with optax.partition, not optax.masked), or '
      'optax.set_to_zero() if it is frozen. If a scheme of '
      'your own does: its Memory.update may only read means, and fields that '
      'its state has as gs.extend.shared. A variance-based scheme behind '
      'gs.dense of another axis cannot: nobody averages its second_moment '
      'there.'
    )
  return jax.tree.unflatten(
    treedef, [P(*(name for name in axes if name in own)) for own in varies]
  )


def init(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int | Mapping[str, int],
  axis_name: AxisName = AXIS,
  *,
  update_kwargs: Mapping[str, Any] | None = None,
) -> Any:
  """`tx.init(params)` with leading worker axes on worker-local leaves.

  Args:
    tx: any optax transformation with schemes inside.
    params: parameters of one worker; the same on all.
    num_workers: P; or a mapping from axis name to P for several axes. A leaf
      has, of these, the axes over which it differs: see `specs`.
    axis_name: the axis that the schemes were given, where num_workers does not
      name several.
    update_kwargs: as in `specs`.

  Raises:
    TypeError: as `specs`.
    ValueError: as `specs`.
  """
  axes = axis.axes_of(num_workers, axis_name)
  by_worker = specs(tx, params, axes, update_kwargs=update_kwargs)

  def stacked(x, spec):
    if spec == P():
      return x
    x = jnp.asarray(x)
    sizes = tuple(axes[name] for name in spec)
    return jnp.broadcast_to(x, (*sizes, *x.shape)).copy()

  return jax.tree.map(stacked, tx.init(params), by_worker)


def parallel(
  step: Callable[..., Any],
  *,
  runner: Runner,
  num_workers: int | Mapping[str, int],
  in_specs: Any,
  out_specs: Any,
  axis_name: str = AXIS,
  donate_argnums: Sequence[int] = (),
  devices: Sequence[jax.Device] | None = None,
  check_vma: bool = True,
) -> jax.stages.Wrapped:
  """Compiles a per-worker step for all workers.

  Args:
    step: what one worker does with its own arguments, none of which has a
      worker axis; the collectives inside of it use `axis_name`.
    runner: 'simulate' (vmap: P workers on one device), 'pmap' or 'shard_map'
      (a device each).
    num_workers: P; or a mapping from axis name to P for several axes, such as
      {'workers': 4, 'devices': 4} for workers of four devices each, the
      outermost first. Not for 'pmap', which has one axis.
    in_specs: a PartitionSpec prefix tree for each argument: P(axis_name) has
      a leading worker axis outside and none inside; P() is the same for all.
      With several axes P('workers', 'devices') has two, and P('workers') is
      the same on the devices of a worker.
    out_specs: likewise for the result.
    axis_name: of the mapped axis, where num_workers does not name several.
    donate_argnums: arguments whose buffers may be reused.
    devices: at least as many as workers along all axes; the first ones of the
      process if None. The last axis takes neighbours.
    check_vma: whether the types of `jax.shard_map` are checked, under every
      runner. Where they are too strict for a step, 'shard_map' raises what
      JAX raises, the others warn. False checks none; what comes back under
      P() is then one worker's, even if others have another.

  Returns:
    A function like those that `jax.jit` returns ('pmap' has no `trace`). When
    it is traced, once for arguments of the same shapes, it raises ValueError
    if an argument's leading axis is not of num_workers, an output under P()
    differs between workers, or gradients were averaged already.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: unknown runner, num_workers is not positive, a spec names
      another axis, too few devices, or several axes for 'pmap'.
  """
  arguments.function('step', step)
  arguments.one_of('runner', runner, RUNNERS)
  axes = axis.axes_of(num_workers, axis_name)
  if runner == 'pmap' and len(axes) > 1:
    raise ValueError(
      f"runner 'pmap' has one axis, got num_workers={axes}; use "
      'runner="shard_map", or runner="simulate"'
    )
  arguments.num_workers(math.prod(axes.values()))
  in_specs = arguments.sequence('in_specs', in_specs)
  arguments.flag('check_vma', check_vma)
  once = axis.WorkerStep(step, axes, in_specs, out_specs, check_vma)
  once.check_specs()
  donate = tuple(
    arguments.whole_number('each of donate_argnums', i, 0, len(in_specs) - 1)
    for i in arguments.sequence('donate_argnums', donate_argnums)
  )
  if runner == 'simulate':
    return runners.simulated(once, donate)
  devices = jax.devices() if devices is None else _different(devices)
  needed = math.prod(axes.values())
  if len(devices) < needed:
    sizes = ' x '.join(map(str, axes.values()))
    raise ValueError(
      f'runner {runner!r} needs a device for each of {sizes} workers, '
      f'found {len(devices)}; use runner="simulate", or for CPUs '
      f'jax.config.update("jax_num_cpu_devices", {needed}) before '
      'anything else'
    )
  devices = devices[:needed]
  if runner == 'pmap':
    return runners.Pmapped(once, devices, donate)
  return runners.sharded(once, devices, donate)


def _different(devices: Any) -> list[jax.Device]:
  """The devices, none of which is there twice."""
  found = list(arguments.sequence('devices', devices))
  for device in found:
    arguments.instance('each of devices', device, jax.Device)
  if len(set(found)) < len(found):
    raise ValueError(f'devices must be different ones, got {found}')
  return found
