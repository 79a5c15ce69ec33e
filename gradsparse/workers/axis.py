"""The worker axes that arrays have outside of a step, and who must have them.

A step is written for one worker. Outside of it what differs between workers
has a leading axis of workers, P(axis_name), and what is the same for all has
none, P(). Where workers are several devices each there is a second axis; what
differs between those, too, has both, P(axis_name, second). JAX lets mistakes
in this pass: a block of several rows of which the first is taken, an output of
which the first worker's is returned, a memory that is broadcast. They are
refused here, while a program is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
import reprlib
import textwrap
from typing import Any
import warnings

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.collectives import ReplicationError
from gradsparse.collectives import computed
from gradsparse.state import differences
from gradsparse.traffic import counting
from gradsparse.transform.sharding import cut_of
from gradsparse.transform.sharding import is_spec
from gradsparse.workers import constraints
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np

_UNCHECKED = (
  "the types of this step could not be checked as runner 'shard_map' checks "
  "them ({}). If an output under P() differs between workers, the first one's "
  'is returned and nothing is said. A loop whose carry comes to differ must '
  'start from gs.workers.local(carry, axis_name); JAX knows no types for a '
  'collective over an axis of vmap. check_vma=False says that you know.'
)


def axes_of(
  num_workers: int | Mapping[str, int], axis_name: AxisName
) -> dict[str, int]:
  """How many workers there are along each axis, by its name, outermost first.

  Args:
    num_workers: of the one axis, or a mapping that names all.
    axis_name: of the one axis.

  Raises:
    TypeError: an argument of the wrong kind.
    ValueError: an argument out of range, or one number for several axes.
  """
  if not isinstance(num_workers, Mapping):
    arguments.axis_name(axis_name, optional=False)
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    if len(names) > 1:
      raise ValueError(
        'num_workers must be a mapping for several axes, such as '
        f'{dict.fromkeys(names, 2)}, got {num_workers!r}'
      )
    num_workers = dict.fromkeys(names, num_workers)
  arguments.axis_name(tuple(num_workers), optional=False)
  return {name: arguments.num_workers(n) for name, n in num_workers.items()}


def over(fn: Callable[[P, Any], Any], specs: Any, tree: Any) -> Any:
  """`fn(spec, leaf)` of each leaf, for a prefix tree of specs."""
  specs = _broadcast(specs, tree)
  return jax.tree.map(fn, specs, tree, is_leaf=is_spec)


def _broadcast(specs: Any, tree: Any) -> Any:
  """A tree of specs, one for each leaf.

  Raises:
    ValueError: the specs are no prefix of the tree.
  """
  try:
    return jax.tree.broadcast(specs, tree, is_leaf=is_spec)
  except ValueError:
    found = differences.first_difference(specs, tree, is_spec)
    path, given, there = found or ((), specs, tree)
    where = jax.tree_util.keystr(path)[-80:] or 'their root'
    got, wanted = _words(given, there), _words(there, given)
    static = ', which differ in what is no array: make one from the other'
    raise ValueError(
      'in_specs must be a prefix of the arguments, and out_specs of the '
      f'result, got at {where} {got} for {wanted}'
      f'{static if got == wanted else ""}'
    ) from None  # JAX prints both trees


def _words(node: Any, other: Any) -> str:
  """What a node is, and where it has not the children of another one."""
  if is_spec(node):
    return _text(node)
  name = type(node).__name__
  if isinstance(node, Mapping) and isinstance(other, Mapping):
    more, less = (
      textwrap.shorten(', '.join(repr(k) for k in x if k not in y), 60)
      for x, y in ((node, other), (other, node))
    )
    return f'{name} with {more}' if more else f'{name} without {less}'
  if isinstance(node, tuple | list) and type(node) is type(other):
    return f'{name} of {len(node)}'
  return f'array of shape {node.shape}' if hasattr(node, 'dtype') else name


def _text(spec: P) -> str:
  """As users write it."""
  return f'P{tuple(spec)}'.replace(',)', ')')


def check_are_specs(name: str, specs: Any) -> None:
  """Refuses a tree that holds anything but PartitionSpecs.

  Raises:
    TypeError: names the first other leaf.
  """
  pairs = jax.tree_util.tree_leaves_with_path(specs, is_leaf=is_spec)
  for path, spec in pairs:
    if not is_spec(spec):
      text = reprlib.repr(spec)
      raise TypeError(
        f'{name} must be trees of PartitionSpecs, got {text} at '
        f'{jax.tree_util.keystr(path) or "the top"}'
      )


def with_paths(specs: Any, tree: Any) -> Iterator[tuple[Any, P, Any]]:
  """(path, spec, leaf) of each leaf, for a prefix tree of specs."""
  specs = _broadcast(specs, tree)
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  by_leaf = jax.tree.leaves(specs, is_leaf=is_spec)
  for (path, leaf), spec in zip(leaves, by_leaf, strict=True):
    yield path, spec, leaf


def shapes(tree: Any) -> Any:
  """ShapeDtypeStructs, free of devices, meshes and traces."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type),
    jax.eval_shape(lambda x: x, tree),
  )


def trace(
  fn: Callable[..., Any],
  *args: Any,
  axes: Mapping[str, int],
  in_specs: Any,
  out_specs: Any,
) -> None:
  """Traces fn as `shard_map(check_vma=True)` does. Needs no devices.

  Args:
    fn: of one worker's blocks.
    *args: only their shapes and dtypes are used.
    axes: how many workers there are along each axis, by its name.
    in_specs: of the arguments.
    out_specs: of the result.
  """
  mesh = AbstractMesh(
    tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes)
  )
  mapped = jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs)
  # A mesh or a recorder of the surrounding program has no part in it.
  no_mesh = jax.sharding.use_abstract_mesh(AbstractMesh((), ()))
  with no_mesh, counting.recording(None):
    jax.eval_shape(mapped, *shapes(args))


def typed_by(
  specs: Any, step: Callable[..., Any], args: Any, axes: Iterable[str]
) -> Any:
  """The results of a step, typed as their specs say. Inside of it.

  Types may say too much: parameters that are frozen get an update of zeros
  which is typed as their gradient is. What such a result is computed from
  decides then.

  Args:
    specs: a prefix tree, of the results.
    step: of one worker.
    args: of the step.
    axes: names of the axes of the workers.

  Raises:
    ReplicationError: a result differs between workers though its spec says
      otherwise; names the first. Only where types tell.
  """
  with constraints.explained(tuple(axes)):
    out = step(*args)
  leaves, treedef = jax.tree.flatten(out)
  comms = {name: Comm(name) for name in axes}
  told = [
    (path, spec, {name for names in cut_of(spec) for name in names})
    for path, spec, _ in with_paths(specs, out)
  ]
  for name, comm in comms.items():
    if comm.mode != 'checked':
      continue
    typed = [
      n
      for n, (_, _, named) in enumerate(told)
      if name not in named and comm.varies(leaves[n])
    ]
    differing = computed.differing(step, *args, axis_name=name, among=typed)
    if differing:
      path, spec, named = told[min(differing)]
      own = P(*(a for a in comms if a in named or a == name))
      raise ReplicationError(
        f'output{jax.tree_util.keystr(path)} differs between workers, and '
        f'its spec {_text(spec)} says that it is the same on all of axis '
        f'{name!r}: one worker would speak for the others. Average it with '
        'gs.workers.mean, let a gradsparse scheme average the gradients that '
        f'it is made of, or give it {_text(own)} to get that of each worker.'
      )
    for n in typed:
      leaves[n] = comm.replicated(leaves[n])
  return jax.tree.unflatten(treedef, leaves)


@dataclasses.dataclass(frozen=True)
class WorkerStep:
  """A step of one worker, and which of its arrays have worker axes outside.

  Attributes:
    function: the step.
    axes: how many workers of all hosts there are along each axis, by its name;
      the outermost first.
    in_specs: a PartitionSpec prefix tree for each argument.
    out_specs: likewise for the result.
    check_vma: whether types are checked.
  """

  function: Callable[..., Any]
  axes: Mapping[str, int]
  in_specs: tuple[Any, ...]
  out_specs: Any
  check_vma: bool = True

  def check_specs(self) -> None:
    """Refuses specs that name no axis of the workers, or in another order.

    Raises:
      TypeError: something is no spec.
      ValueError: names the first such spec.
    """
    check_are_specs('in_specs', self.in_specs)
    check_are_specs('out_specs', self.out_specs)
    for spec in jax.tree.leaves(
      (self.in_specs, self.out_specs), is_leaf=is_spec
    ):
      if tuple(spec) != tuple(axis for axis in self.axes if axis in spec):
        raise ValueError(
          f'a spec must name axes of {tuple(self.axes)}, each by itself and in '
          f'this order, got {spec}'
        )

  def check_sizes(self, *args: Any) -> None:
    """Refuses arguments whose worker axes are missing or of another size.

    Args:
      *args: with worker axes; global arrays.

    Raises:
      TypeError: a leaf is no array.
      ValueError: names the first such leaf, its shape and the shape wanted; or
        there are more or fewer arguments than specs.
    """
    if len(args) != len(self.in_specs):
      raise ValueError(
        f'in_specs must have a spec for each argument, got {len(self.in_specs)}'
        f' for {len(args)} arguments'
      )
    arguments.arrays('args', args)
    for path, spec, x in with_paths(self.in_specs, args):
      shape, want = np.shape(x), tuple(self.axes[axis] for axis in spec)
      if shape[: len(want)] != want:
        sizes = ', '.join(map(str, want))
        raise ValueError(
          f'args{jax.tree_util.keystr(path)} has shape {shape}, and its spec '
          f'{spec} wants leading axes of workers: ({sizes}, ...). '
          'Give each worker its part of a global batch by '
          f'x.reshape({sizes}, -1, *x.shape[1:]); gs.workers.init makes state '
          'that has the axis, gs.workers.stack a copy for each worker.'
        )

  def on_blocks(self, *args: Any) -> Any:
    """The step as `shard_map` calls it.

    A worker's block has worker axes of size one. They are taken away before
    the step and put back after it.

    Raises:
      ReplicationError: an output differs between workers though its spec is
        P(); names the first. Only where types tell (`check_vma=True`).
    """
    blocks = over(lambda spec, x: x[(0,) * len(spec)], self.in_specs, args)
    out = typed_by(self.out_specs, self.function, blocks, self.axes)
    return over(
      lambda spec, x: jnp.expand_dims(x, range(len(spec))), self.out_specs, out
    )

  def check_types(self, *args: Any) -> None:
    """Refuses under any runner what types refuse under `shard_map`.

    Where the types are too strict to judge a step, it warns and lets the step
    through.

    Args:
      *args: with worker axes; only their shapes and dtypes are used.

    Raises:
      ReplicationError: see `on_blocks`; or gradients were averaged already.
    """
    if not self.check_vma:
      return
    try:
      trace(
        self.on_blocks,
        *args,
        axes=self.axes,
        in_specs=self.in_specs,
        out_specs=self.out_specs,
      )
    except ReplicationError:
      raise
    except Exception as e:  # JAX has many for it, an AssertionError too
      reason = f'{type(e).__name__}: {e}'.splitlines()[0]
      warnings.warn(_UNCHECKED.format(reason), stacklevel=2)
