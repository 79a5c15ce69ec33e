"""Compiles a step of one worker for all workers, by one of three runners."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import math
from typing import Any, Literal, get_args
import warnings

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.collectives import ReplicationError
from gradsparse.transform.sharding import is_spec
from gradsparse.workers import axis
from gradsparse.workers.differing import typed_by
import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
import numpy as np

Runner = Literal['simulate', 'pmap', 'shard_map']
RUNNERS: tuple[Runner, ...] = get_args(Runner)

_UNCHECKED = (
  "the types of this step could not be checked as runner 'shard_map' checks "
  "them ({}). If an output under P() differs between workers, the first one's "
  'is returned without an error. A loop whose carry becomes varying must '
  'start from gs.workers.local(carry, axis_name); JAX has no types for a '
  'collective over an axis of vmap. check_vma=False silences this warning.'
)


def local(tree: Any, axis_name: AxisName = axis.AXIS) -> Any:
  """Types replicated values as this worker's own.

  Differentiate with respect to the result: under `shard_map`, JAX would sum
  gradients with respect to replicated parameters over the workers, before a
  scheme could compress them. Under other runners this does nothing.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> def gradient(w, x):
  ...   return jax.grad(lambda own: own * x)(gs.workers.local(w))
  >>> each = jax.vmap(gradient, in_axes=(None, 0), axis_name='workers')
  >>> print(each(5.0, jnp.array([1.0, 3.0])))
  [1. 3.]

  Raises:
    TypeError: axis_name is not a name, a tuple of names or None.
    NameError: axis_name is not an axis of the surrounding program.
  """
  return Comm(arguments.axis_name(axis_name)).local(tree)


def mean(tree: Any, axis_name: AxisName = axis.AXIS) -> Any:
  """Mean over workers of a tree of arrays (metrics, batch statistics).

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> mean = jax.vmap(gs.workers.mean, axis_name='workers')
  >>> print(mean(jnp.array([1.0, 3.0])))
  [2. 2.]

  Raises:
    TypeError: a leaf is not an array, or axis_name is not a name, a tuple of
      names or None.
    NameError: axis_name is not an axis of the surrounding program.
  """
  arguments.arrays('tree', tree)
  return Comm(arguments.axis_name(axis_name)).mean(tree)


def parallel(
  step: Callable[..., Any],
  *,
  runner: Runner,
  num_workers: int | Mapping[str, int],
  in_specs: Any,
  out_specs: Any,
  axis_name: str = axis.AXIS,
  donate_argnums: Sequence[int] = (),
  devices: Sequence[jax.Device] | None = None,
  check_vma: bool = True,
) -> jax.stages.Wrapped:
  """Compiles a per-worker step for all workers.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> from jax.sharding import PartitionSpec as P
  >>> def step(x):
  ...   return x, gs.workers.mean(x)
  >>> run = gs.workers.parallel(
  ...   step, runner='simulate', num_workers=2,
  ...   in_specs=(P('workers'),), out_specs=(P('workers'), P()))
  >>> print(*run(jnp.array([1.0, 3.0])))
  [1. 3.] 2.0

  Args:
    step: the step of one worker. Its arguments have no worker axis; its
      collectives use `axis_name`.
    runner: 'simulate' (vmap: P workers on one device), 'pmap' or 'shard_map'
      (a device for each worker).
    num_workers: P; or a mapping from axis name to P for several axes, such as
      {'workers': 4, 'devices': 4} for workers of four devices each, the
      outermost first. 'pmap' has one axis only.
    in_specs: a PartitionSpec prefix tree for each argument: P(axis_name) has
      a leading worker axis outside and none inside; P() is equal for all. With
      several axes P('workers', 'devices') has two, and P('workers') is equal on
      the devices of a worker.
    out_specs: a PartitionSpec prefix tree for the result.
    axis_name: name of the mapped axis, if num_workers is one number.
    donate_argnums: arguments whose buffers may be reused.
    devices: at least as many as workers along all axes; None takes the first
      devices of the process. The last axis takes neighbours.
    check_vma: whether the types of `jax.shard_map` are checked, under every
      runner. If they are too strict for a step, 'shard_map' raises JAX's error,
      and the others warn. False does not check: an output under P() is then
      one worker's, even if the workers' outputs differ.

  Returns:
    A function like those that `jax.jit` returns ('pmap' has no `trace`). When
    it is traced, once for arguments of the same shapes, it raises ValueError
    if an argument's leading axis is not of num_workers, an output under P()
    differs between workers, or gradients were averaged already; and TypeError
    if the number of arguments is not that of in_specs.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: runner is unknown, num_workers is not positive, a spec names
      another axis, there are too few devices, or 'pmap' has several axes.
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
  for name, tree in (('in_specs', in_specs), ('out_specs', out_specs)):
    axis.check_are_specs(name, tree)
  for spec in jax.tree.leaves((in_specs, out_specs), is_leaf=is_spec):
    axis.check_order('a spec', spec, axes)
  once = _WorkerStep(step, axes, in_specs, out_specs, check_vma)
  donate = tuple(
    arguments.whole_number('each of donate_argnums', i, 0, len(in_specs) - 1)
    for i in arguments.sequence('donate_argnums', donate_argnums)
  )
  if runner == 'simulate':
    return _simulated(once, donate)
  devices = jax.devices() if devices is None else _different(devices)
  needed = math.prod(axes.values())
  if len(devices) < needed:
    sizes = ' x '.join(map(str, axes.values()))
    raise ValueError(
      f'runner {runner!r} needs a device for each of {sizes} workers, '
      f'found {len(devices)}; use runner="simulate", or for CPUs call '
      f'jax.config.update("jax_num_cpu_devices", {needed}) before '
      'anything else, whatever XLA_FLAGS says'
    )
  devices = devices[:needed]
  if runner == 'pmap':
    return _Pmapped(once, devices, donate)
  return _Sharded(once, devices, donate)


def _different(devices: Any) -> list[jax.Device]:
  """Checks that devices are distinct."""
  found = list(arguments.sequence('devices', devices))
  for device in found:
    arguments.instance('each of devices', device, jax.Device)
  if len(set(found)) < len(found):
    raise ValueError(f'devices must be different ones, got {found}')
  return found


@dataclasses.dataclass(frozen=True)
class _WorkerStep:
  """A step of one worker, with the specs of its arguments and result.

  Attributes:
    function: the step.
    axes: axis name -> number of workers on all hosts, outermost first.
    in_specs: a PartitionSpec prefix tree for each argument.
    out_specs: a PartitionSpec prefix tree for the result.
    check_vma: whether types are checked.
  """

  function: Callable[..., Any]
  axes: Mapping[str, int]
  in_specs: tuple[Any, ...]
  out_specs: Any
  check_vma: bool = True

  def check_sizes(self, *args: Any) -> None:
    """Refuses arguments whose worker axes are missing or of another size.

    Args:
      *args: global arrays, with worker axes.

    Raises:
      TypeError: a leaf is not an array, or the number of arguments is not that
        of specs.
      ValueError: an axis is missing or of another size; the message names the
        first such leaf.
    """
    axis.check_count(self.in_specs, args)
    arguments.arrays('args', args)
    axis.check_leading(
      'args',
      self.in_specs,
      args,
      self.axes,
      'Give each worker its part of a global batch by x.reshape({0}, -1, '
      '*x.shape[1:]); gs.workers.init makes state with the axis, '
      'gs.workers.resize hands it to another number of workers, and '
      'gs.workers.stack makes a copy for each worker.',
    )

  def on_blocks(self, *args: Any) -> Any:
    """The step of a worker's blocks, for `shard_map`.

    The blocks' worker axes, of size one, are removed before the step and put
    back after it.

    Raises:
      ReplicationError: an output differs between workers although its spec is
        P(); the message names the first one. Only with `check_vma=True`.
    """
    own = axis.without_axes(self.in_specs, args)
    out = typed_by(self.out_specs, self.function, own, tuple(self.axes))
    return axis.with_axes(self.out_specs, out)

  def check_types(self, *args: Any) -> None:
    """Applies the type checks of `shard_map` under any runner.

    If the types are too strict for a step, it warns instead.

    Args:
      *args: arrays with worker axes; only their shapes and dtypes are used.

    Raises:
      ReplicationError: see `on_blocks`; or gradients were averaged already.
    """
    if not self.check_vma:
      return
    try:
      axis.trace(
        self.on_blocks,
        *args,
        axes=self.axes,
        in_specs=self.in_specs,
        out_specs=self.out_specs,
      )
    except ReplicationError:
      raise
    except Exception as e:  # JAX raises many types, AssertionError too
      reason = f'{type(e).__name__}: {e}'.splitlines()[0]
      warnings.warn(_UNCHECKED.format(reason), stacklevel=2)


def _axes(specs_tree, axis_name):
  """0 where a spec names the axis, as the axes before it are mapped already."""
  return jax.tree.map(
    lambda spec: 0 if axis_name in spec else None, specs_tree, is_leaf=is_spec
  )


def _simulated(step: _WorkerStep, donate: Sequence[int]) -> jax.stages.Wrapped:
  """All workers on one device, by a `jax.vmap` for each axis."""
  mapped = step.function
  for axis_name, size in reversed(tuple(step.axes.items())):
    mapped = jax.vmap(
      mapped,
      in_axes=_axes(step.in_specs, axis_name),
      out_axes=0,
      axis_name=axis_name,
      axis_size=size,
    )

  def wanted(spec, x):
    """The first worker's copy, along the axes where all are equal."""
    return x[tuple(slice(None) if a in spec else 0 for a in step.axes)]

  def run(*args):
    step.check_sizes(*args)
    out = mapped(*args)
    # After the step, whose own errors are clearer than those of types.
    step.check_types(*args)
    return axis.over(wanted, step.out_specs, out)

  return jax.jit(run, donate_argnums=donate)


class _Runner(jax.stages.Wrapped):
  """A program of all workers, whose arguments are made ready before it."""

  _mapped: Any

  @abc.abstractmethod
  def _ready(self, *args: Any) -> Sequence[Any]:
    """The arguments, checked or placed."""

  def __call__(self, *args):
    return self._mapped(*self._ready(*args))

  def lower(self, *args) -> jax.stages.Lowered:
    return self._mapped.lower(*self._ready(*args))

  def trace(self, *args) -> jax.stages.Traced:
    return self._mapped.trace(*self._ready(*args))


class _Sharded(_Runner):
  """A device for each worker, by `jax.shard_map`, which checks the types.

  Arguments are placed first, or JAX would compile anew for results.
  """

  def __init__(self, step: _WorkerStep, devices: Sequence[Any], donate: Any):
    self._mesh = Mesh(
      np.asarray(devices).reshape(tuple(step.axes.values())),
      tuple(step.axes),
      axis_types=(AxisType.Auto,) * len(step.axes),
    )
    self._places = jax.tree.map(
      lambda spec: NamedSharding(self._mesh, spec),
      step.in_specs,
      is_leaf=is_spec,
    )
    mapped = jax.shard_map(
      step.on_blocks,
      mesh=self._mesh,
      in_specs=step.in_specs,
      out_specs=step.out_specs,
      check_vma=step.check_vma,
    )

    def run(*args):
      step.check_sizes(*args)
      return mapped(*args)

    self._mapped = jax.jit(run, donate_argnums=donate)

  def _ready(self, *args):
    # Arrays of several processes are on the devices of all.
    if jax.process_count() == 1 and len(args) == len(self._places):
      with contextlib.suppress(TypeError, ValueError):  # `run` says more
        return [*map(self._placed, args, self._places)]
    return args

  def _placed(self, arg, places):
    def there(place, part):
      found = (getattr(x, 'sharding', None) for x in jax.tree.leaves(part))
      return all(sharding == place for sharding in found)

    if all(jax.tree.leaves(jax.tree.map(there, places, arg))):
      return arg  # jax.device_put would take longer than the call
    return jax.device_put(arg, places)


class _Pmapped(_Runner):
  """A device for each worker, by `jax.pmap`, along one axis.

  `jax.pmap` splits the arguments before it traces, for any number of workers,
  so the checks run before it.
  """

  def __init__(self, step: _WorkerStep, devices: Sequence[Any], donate: Any):
    def check(*args):
      step.check_sizes(*args)
      step.check_types(*args)

    # Checks once for arguments of the same shapes, on whatever devices.
    self._checked = jax.jit(check).eval_shape
    (axis_name,) = step.axes
    self._mapped = jax.pmap(
      step.function,
      axis_name=axis_name,
      in_axes=_axes(step.in_specs, axis_name),
      out_axes=_axes(step.out_specs, axis_name),
      devices=devices,
      donate_argnums=tuple(donate),
    )

  def _ready(self, *args):
    def bare(x):
      known = hasattr(x, 'shape') and hasattr(x, 'dtype')
      return jax.ShapeDtypeStruct(x.shape, x.dtype) if known else x

    self._checked(*jax.tree.map(bare, args))
    return args
