"""`wrap`: a step of one worker inside the user's own program.

Specs have the meaning of `jax.shard_map`: a batch under P('data') is cut along
its first dimension, and a worker gets a block. Only state has a worker axis
(from `gs.workers.init`), which is removed before the step and put back after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.sockets import ownership
from gradsparse.state.inspection import schemes_in
from gradsparse.transform.sharding import cut_of
from gradsparse.transform.sharding import is_spec
from gradsparse.workers import axis
from gradsparse.workers.differing import typed_by
import jax
from jax.sharding import AbstractMesh
from jax.sharding import Mesh
import numpy as np


def wrap(
  step: Callable[..., Any],
  *,
  mesh: Mesh | AbstractMesh,
  axis_name: AxisName = axis.AXIS,
  in_specs: Sequence[Any],
  out_specs: Any,
  check_vma: bool = True,
) -> Callable[..., Any]:
  """`jax.shard_map` of a per-worker step, on the user's own mesh.

  An argument or a result that holds a scheme's state counts as state. Leaves of
  state that differ between workers by their specs have leading worker axes
  outside the step, as `gs.workers.init` makes them, and none inside. All other
  arguments and results are cut and concatenated as by `jax.shard_map`.

    state = gs.workers.init(tx, params, mesh.shape['data'], 'data')
    state = jax.device_put(
        state, gs.workers.shardings(tx, params, mesh, 'data'))
    params = jax.device_put(params, NamedSharding(mesh, P()))
    specs = gs.workers.specs(tx, params, mesh.shape['data'], 'data')
    train = jax.jit(
        gs.workers.wrap(step, mesh=mesh, axis_name='data',
                        in_specs=(P(), specs, P('data')),
                        out_specs=(P(), specs, P())),
        donate_argnums=(0, 1))
    params, state, loss = train(params, state, batch)

  The step returns arrays that lie on the mesh. So put the first ones there too,
  as above: otherwise the second call is compiled anew.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> from jax.sharding import AxisType, PartitionSpec as P
  >>> def step(x):
  ...   return gs.workers.mean(jnp.sum(x), 'data')
  >>> mesh = jax.make_mesh((1,), ('data',), axis_types=(AxisType.Auto,))
  >>> wrapped = gs.workers.wrap(
  ...   step, mesh=mesh, axis_name='data', in_specs=(P('data'),), out_specs=P())
  >>> print(jax.jit(wrapped)(jnp.array([1.0, 3.0])))
  4.0

  Args:
    step: the step of one worker, with its block of the batch. Its collectives
      use `axis_name`.
    mesh: the program's mesh. Its other axes stay automatic: JAX shards the work
      over them by the arrays' shardings (see `gs.sharded`).
    axis_name: the workers' axis; a tuple for several axes, the outermost first.
    in_specs: a PartitionSpec prefix tree for each argument, over the workers'
      axes only. For state: `gs.workers.specs`.
    out_specs: a PartitionSpec prefix tree for the result. Each element of a
      tuple is a result of its own.
    check_vma: whether JAX's types are checked, as in `jax.shard_map`. Without
      them, a result under P() that differs between workers is not detected,
      unless it is a scheme's own state.

  Returns:
    A function of the global arrays, for `jax.jit` (which can donate arguments).

  Raises:
    TypeError: an argument is of the wrong kind; when called: the number of
      arguments is not that of in_specs.
    ValueError: the mesh does not have the axis, or a spec names another one;
      when called: a batch cannot be divided evenly, state is of another number
      of workers, or a leaf that differs between workers is under P().
  """
  arguments.function('step', step)
  check_vma = arguments.flag('check_vma', check_vma)
  axes = axis.axes_on(mesh, axis_name)
  if is_spec(in_specs) or not isinstance(in_specs, Sequence):
    raise TypeError(
      'in_specs must be a tuple with the specs of each argument, got '
      f'{in_specs!r}'
    )
  in_specs = tuple(in_specs)
  for name, specs in (('in_specs', in_specs), ('out_specs', out_specs)):
    axis.check_are_specs(name, specs)
  for spec in jax.tree.leaves((in_specs, out_specs), is_leaf=is_spec):
    if not axis.named(spec) <= axes.keys():
      raise ValueError(
        f'a spec must name axes of the workers, {tuple(axes)}, got {spec}; '
        'over the other axes of the mesh, jax.device_put decides how arrays '
        'are sharded'
      )

  def run(*args):
    axis.check_count(in_specs, args)
    axis.over(lambda spec, x: spec, in_specs, args)  # refuses other trees
    is_state = [bool(schemes_in(arg)) for arg in args]
    for number, (spec, arg) in enumerate(zip(in_specs, args, strict=True)):
      check = _check_state if is_state[number] else _check_divisible
      check(f'args[{number}]', spec, arg, axes)
    states = {jax.tree.structure(arg) for arg in args if schemes_in(arg)}

    def on_blocks(*blocks):
      own = [
        axis.without_axes(spec, block) if state else block
        for spec, block, state in zip(in_specs, blocks, is_state, strict=True)
      ]
      out = typed_by(out_specs, step, own, tuple(axes))
      return _with_axes(out_specs, out, states)

    return jax.shard_map(
      on_blocks,
      mesh=mesh,
      axis_names=set(axes),
      in_specs=in_specs,
      out_specs=out_specs,
      check_vma=check_vma,
    )(*args)

  return functools.wraps(step)(run)


def _refuse_shared(name: str, specs: Any, state: Any) -> None:
  """Refuses a worker's own state under P(), which only types would detect."""
  own = jax.tree.leaves(ownership.is_local(state))
  for (path, spec, _), is_own in zip(
    axis.with_paths(specs, state), own, strict=True
  ):
    if is_own and not axis.named(spec):
      raise ValueError(
        f'{name}{jax.tree_util.keystr(path)} is state of a scheme that differs '
        f'between workers, but its spec {spec} says that it is the same on '
        'all. Use the specs of gs.workers.specs(tx, params, num_workers, '
        'axis_name), and begin with gs.workers.init of the same arguments'
      )


def _check_state(
  name: str, specs: Any, state: Any, axes: Mapping[str, int]
) -> None:
  """Refuses state without the worker axes that its specs name."""
  _refuse_shared(name, specs, state)
  for path, spec, _ in axis.with_paths(specs, state):
    where = f'{name}{jax.tree_util.keystr(path)} is in one argument with a'
    axis.check_order(f'{where} scheme, where a spec', spec, axes)
  axis.check_leading(
    name,
    specs,
    state,
    axes,
    'gs.workers.init makes state for the workers of a mesh; '
    'gs.workers.resize hands the state of another number of workers to them. '
    'Pass arrays that are not state in an argument of their own',
  )


def _check_divisible(
  name: str, specs: Any, tree: Any, axes: Mapping[str, int]
) -> None:
  """Refuses arrays that cannot be divided evenly over the workers."""
  for path, spec, x in axis.with_paths(specs, tree):
    shape = np.shape(x)
    wanted = [math.prod(axes[a] for a in names) for names in cut_of(spec)]
    if len(wanted) > len(shape) or any(
      size % parts for size, parts in zip(shape, wanted, strict=False)
    ):
      raise ValueError(
        f'{name}{jax.tree_util.keystr(path)} has shape {shape}, but its spec '
        f'{spec} divides it into {" x ".join(map(str, wanted))} equal parts, '
        'one for each worker: the size must be a multiple of that'
      )


def _with_axes(specs: Any, out: Any, states: set[Any]) -> Any:
  """The result of a step, with worker axes of size one added to state.

  Args:
    specs: a prefix tree.
    out: the result.
    states: structures of the arguments that are state.
  """
  specs = jax.tree.broadcast(specs, out, is_leaf=is_spec)
  several = type(out) in (tuple, list)
  if several and jax.tree.structure(out) not in states:
    pairs = zip(specs, out, strict=True)
    return type(out)(_expanded(spec, x) for spec, x in pairs)
  return _expanded(specs, out)


def _expanded(specs: Any, out: Any) -> Any:
  if not schemes_in(out):
    return out
  _refuse_shared('output', specs, out)
  return axis.with_axes(specs, out)
