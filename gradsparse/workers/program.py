"""Which state is whose, and a per-worker step as a program for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

from gradsparse import arguments
from gradsparse.around.local_gradient import is_local
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.sockets import ownership
from gradsparse.workers import axis
from gradsparse.workers import runners
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax

RUNNERS = ('simulate', 'pmap', 'shard_map')
AXIS = 'workers'


def params_spec(
  tx: optax.GradientTransformation, params: Any, axis_name: str = AXIS
) -> P:
  """P(axis_name) where a transformation makes parameters differ by worker.

  That is what `gs.local_gradient` does; otherwise P().
  """
  state = jax.eval_shape(tx.init, params)
  return P(axis_name) if is_local(state) else P()


def stack(tree: Any, num_workers: int) -> Any:
  """A copy for each worker, along a leading axis."""
  return jax.tree.map(
    lambda x: jnp.broadcast_to(x, (num_workers, *jnp.shape(x))).copy(), tree
  )


def local(tree: Any, axis_name: AxisName = AXIS) -> Any:
  """Replicated values, typed as this worker's own.

  Differentiate with respect to the result: under `shard_map` the gradient
  with respect to replicated parameters would be summed over the workers by
  JAX, uncompressed, before a scheme sees it. A no-op under other runners.
  """
  return Comm(axis_name).local(tree)


def mean(tree: Any, axis_name: AxisName = AXIS) -> Any:
  """Mean over workers of a tree of arrays (metrics, batch statistics)."""
  return Comm(axis_name).mean(tree)


def specs(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int,
  axis_name: str = AXIS,
) -> Any:
  """Which leaves of the optimizer state are worker-local.

  Args:
    tx: any optax transformation with schemes inside.
    params: arrays or ShapeDtypeStructs, without worker axis.
    num_workers: P.
    axis_name: the axis that the schemes were given.

  Returns:
    A tree like `tx.init(params)` of PartitionSpecs: P(axis_name) for what
    differs between workers, P() for what does not.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: some parameters would be updated differently on each worker,
      because no scheme averages them; names the first. Or num_workers is not
      positive.
  """
  num_workers = arguments.num_workers(num_workers)
  arguments.axis_name(axis_name, optional=False)
  state = jax.eval_shape(tx.init, params)
  flat, treedef = jax.tree.flatten(state)
  update = optax.with_extra_args_support(tx).update
  varies = jax.tree.leaves(_surely_local(state))
  differ = is_local(state)
  for _ in range(len(flat) + 1):
    seen: dict[str, Any] = {}
    axis.trace(
      _observed(update, treedef, varies, differ, axis_name, seen),
      params,
      *flat,
      axes={axis_name: num_workers},
      in_specs=(P(),) * (1 + len(flat)),
      out_specs=P(),
    )
    new = [a or b for a, b in zip(varies, seen['state'], strict=True)]
    if new == varies:
      break
    varies = new
  if seen['updates'] and not differ:
    raise ValueError(
      f'the update of {seen["updates"][0]} differs between workers: no '
      f'gradsparse scheme averages it over axis {axis_name!r}, so workers '
      'would drift apart. Give every parameter a scheme, gs.dense for '
      'instance (with optax.partition, not optax.masked). If a scheme of '
      'your own does: its Memory.update may only read means, and fields that '
      'its state has as gs.extend.shared.'
    )
  return jax.tree.unflatten(
    treedef, [P(axis_name) if v else P() for v in varies]
  )


def _surely_local(state):
  """Tree of bools: what differs between workers before any trace says so.

  Branches of a `cond` (optax.MultiSteps) must agree on it from the start.
  """

  def is_multi_steps(x):
    return isinstance(x, optax.MultiStepsState)

  def mark(x, says):
    if not is_multi_steps(x):
      return says
    return says._replace(
      acc_grads=ownership.is_local(x.acc_grads, default=True),
      inner_opt_state=_surely_local(x.inner_opt_state),
    )

  says = ownership.is_local(state)
  return jax.tree.map(mark, state, says, is_leaf=is_multi_steps)


def _observed(update, treedef, varies, differ, axis_name, seen):
  """One update, which notes what of its results differs between workers."""

  def once(params, *leaves):
    comm = Comm(axis_name)
    state = jax.tree.unflatten(
      treedef,
      [comm.local(x) if v else x for x, v in zip(leaves, varies, strict=True)],
    )
    grads = comm.local(params)
    updates, new = update(
      grads, state, grads if differ else params, second_moment=grads
    )
    seen['state'] = [comm.varies(x) for x in jax.tree.leaves(new)]
    seen['updates'] = [
      jax.tree_util.keystr(path) or 'the parameters'
      for path, x in jax.tree_util.tree_leaves_with_path(updates)
      if comm.varies(x)
    ]
    return 0

  return once


def init(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int,
  axis_name: str = AXIS,
) -> Any:
  """`tx.init(params)` with a leading worker axis on worker-local leaves.

  Args:
    tx: any optax transformation with schemes inside.
    params: parameters of one worker; the same on all.
    num_workers: P.
    axis_name: the axis that the schemes were given.

  Raises:
    TypeError: as `specs`.
    ValueError: as `specs`.
  """
  num_workers = arguments.num_workers(num_workers)
  state = tx.init(params)

  def stack(x, spec):
    if spec == P():
      return x
    x = jnp.asarray(x)
    return jnp.broadcast_to(x, (num_workers, *x.shape)).copy()

  return jax.tree.map(stack, state, specs(tx, params, num_workers, axis_name))


def parallel(
  step: Callable[..., Any],
  *,
  runner: str,
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
  if not isinstance(num_workers, Mapping):
    num_workers = {axis_name: num_workers}
  arguments.axis_name(tuple(num_workers), optional=False)
  axes = {name: arguments.num_workers(n) for name, n in num_workers.items()}
  if runner == 'pmap' and len(axes) > 1:
    raise ValueError(
      f"runner 'pmap' has one axis, got num_workers={axes}; use "
      'runner="shard_map", or runner="simulate"'
    )
  once = axis.WorkerStep(step, axes, tuple(in_specs), out_specs, check_vma)
  once.check_specs()
  donate = tuple(donate_argnums)
  if runner == 'simulate':
    return runners.simulated(once, donate)
  devices = list(jax.devices() if devices is None else devices)
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
