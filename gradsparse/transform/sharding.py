"""Parameters that are sharded over other axes of the mesh.

Within a worker (a replica), each device has a shard of the leaves. It sends the
message of its own shards to the devices that have the same shards in the other
workers, so nothing is gathered inside a worker. The devices of a worker agree
on a few numbers: whether a step is accepted, and the size of messages.

Only leaves that are sharded over the same mesh axes share a message: a leaf
that is replicated over the devices of a worker must stay equal on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
import functools
import math
from typing import Any

from gradsparse import arguments
from gradsparse.collectives import Comm
from gradsparse.collectives import surroundings
from gradsparse.sockets import Cut
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.transform.layout import Layout
from gradsparse.transform.messages import Scheme
from gradsparse.transform.step import one_step
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def is_spec(x: Any) -> bool:
  """Whether x is a PartitionSpec (for is_leaf)."""
  return isinstance(x, P)


def cuts(param_specs: Any, tree: Any) -> tuple[Cut, ...]:
  """How each leaf of a tree is sharded.

  Args:
    param_specs: tree, or prefix tree, of PartitionSpecs.
    tree: parameters.

  Raises:
    TypeError: a leaf of param_specs is not a PartitionSpec.
    ValueError: param_specs is not a prefix of the tree, or a spec has more
      dimensions than its leaf.
  """
  _checked(param_specs)
  try:
    by_leaf = jax.tree.broadcast(param_specs, tree, is_leaf=is_spec)
  except ValueError as e:
    raise ValueError(
      f'param_specs must be a prefix of the tree of parameters: {e}'
    ) from e
  specs = jax.tree.leaves(by_leaf, is_leaf=is_spec)
  pairs = jax.tree_util.tree_leaves_with_path(tree)
  out = []
  for (path, leaf), spec in zip(pairs, specs, strict=True):
    cut = cut_of(spec)
    if len(cut) > jnp.ndim(leaf):
      raise ValueError(
        f'param_specs must name at most the {jnp.ndim(leaf)} dimensions of '
        f'{arguments.leaf_name(path)}, got {spec}'
      )
    out.append(cut)
  return tuple(out)


def cut_of(spec: P) -> Cut:
  """How an array of this spec is sharded."""
  cut = tuple(
    () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    for axes in spec
  )
  return cut if any(cut) else ()


def _spec_of(cut: Cut) -> P:
  return P(*(axes or None for axes in cut))


def specs_by_name(layout: Layout) -> dict[str, P]:
  """The spec of each leaf, by the name of the leaf."""
  return dict(zip(layout.names, map(_spec_of, layout.cuts), strict=True))


def _checked(param_specs: Any) -> list[P]:
  """Checks a tree of PartitionSpecs and returns its leaves.

  Raises:
    TypeError: a leaf is not a PartitionSpec, or an axis is not a name.
    ValueError: a spec names an axis twice.
  """
  specs = jax.tree.leaves(
    param_specs, is_leaf=lambda x: x is None or is_spec(x)
  )
  for spec in specs:
    if not is_spec(spec):
      raise TypeError(
        'param_specs must be a tree of PartitionSpecs, got '
        f'{type(spec).__name__}'
      )
    if not all(x is None or _are_names(x) for x in spec):
      raise TypeError(
        f'param_specs must divide dimensions over named mesh axes, got {spec}'
      )
    names = [axis for axes in cut_of(spec) for axis in axes]
    if len(set(names)) < len(names):
      raise ValueError(
        f'param_specs must name a mesh axis once in a spec, got {spec}'
      )
  return specs


def _are_names(axes: Any) -> bool:
  names = axes if isinstance(axes, tuple) else (axes,)
  return all(isinstance(name, str) for name in names)


def check(scheme: Scheme) -> None:
  """Refuses a scheme that cannot work on shards.

  Raises:
    TypeError: see `cuts`.
    ValueError: the scheme selects from all leaves together, or param_specs name
      the workers' axis.
  """
  if scheme.compressor.selects_globally:
    raise ValueError(
      f'{scheme.compressor.name} selects from all leaves together, but no '
      "device has them all: with sharded parameters use scope='leaf' (of each "
      "shard), 'chunk' or 'tile'"
    )
  own = _own_axes(scheme)
  specs = _checked(scheme.param_specs)
  names = {a for spec in specs for axes in cut_of(spec) for a in axes}
  both = sorted(names.intersection(own))
  if both:
    raise ValueError(
      f'param_specs shards parameters over {both[0]!r}, which is the axis of '
      'the workers: each worker must have all parameters'
    )


def shard_specs(scheme: Scheme, layout: Layout, tree: Any) -> Any:
  """How a scheme's state, or any tree, is sharded over a worker's devices.

  Subtrees that are shaped like the parameters are sharded like them.

  Args:
    scheme: a scheme with param_specs.
    layout: of the whole parameters.
    tree: a state without worker axes, or any tree.

  Returns:
    Tree of PartitionSpecs over the axes of param_specs.
  """
  like = layout.treedef.unflatten(map(_spec_of, layout.cuts))

  def is_like(node):
    shapes = tuple(jnp.shape(x) for x in jax.tree.leaves(node))
    return (
      jax.tree.structure(node) == layout.treedef and shapes == layout.shapes
    )

  def specs(node):
    if is_like(node):
      return like
    if not isinstance(node, CompressedMeanState):
      return P()
    compressor = jax.tree.map(lambda _: P(), node.compressor)
    rule = scheme.compressor.state and scheme.compressor.state.shard
    if compressor and rule:
      compressor = tuple(
        jax.tree.map(lambda _, n=n: rule(layout.cuts[n], layout.shapes[n]), x)
        for n, x in zip(layout.compressed, node.compressor, strict=True)
      )
    rest = node._replace(compressor=())
    inner = jax.tree.map(specs, rest, is_leaf=is_like)
    return inner._replace(compressor=compressor)

  return jax.tree.map(
    specs,
    tree,
    is_leaf=lambda x: isinstance(x, CompressedMeanState) or is_like(x),
  )


def per_shard(
  scheme: Scheme,
  comm: Comm,
  layout: Layout,
  grads: Any,
  state: CompressedMeanState,
  extra: dict[str, Any],
  *,
  return_delivered: bool,
) -> tuple[Any, CompressedMeanState, Any]:
  """`one_step` on each device's shards, where JAX shards arrays.

  Args:
    scheme: the scheme.
    comm: the workers.
    layout: of the whole leaves.
    grads: whole gradients, which JAX shards.
    state: whole state, which JAX shards.
    extra: keyword arguments of the update.
    return_delivered: whether to return the delivered values.

  Raises:
    ValueError: the surrounding program does not shard arrays as param_specs
      say.
  """
  name, recorder = scheme.compressor.name, comm.recorder
  step = functools.partial(one_step, scheme, return_delivered=return_delivered)
  if recorder is not None and not recorder.computes:
    return _planned(step, scheme, comm, layout, grads, state, extra)
  if recorder is not None:
    return step(comm, layout.whole_leaves(), grads, state, extra)
  around = surroundings(scheme.axis_name)
  for axis in _named(layout):
    if axis in around.manual:
      raise ValueError(
        'gs.sharded maps the step over the devices of a worker itself, but '
        f'mesh axis {axis!r} of param_specs is manual already: only the '
        "workers' axes may be, as in jax.shard_map(step, axis_names="
        f'{set(_own_axes(scheme))}, ...)'
      )
  sizes = around.automatic
  if not sizes or comm.mode == 'simulated':
    return step(comm, layout.whole_leaves(), grads, state, extra)
  if scheme.param_specs is None and max(sizes.values()) > 1:
    if scheme.adds_leaves:  # JAX shards a plain sum well
      return step(comm, layout, grads, state, extra)
    raise ValueError(
      f'{name} runs where JAX itself shards arrays over mesh axes '
      f'{tuple(sizes)}, and would gather whole leaves over them. Say how '
      'parameters are sharded there: gs.sharded(tx, param_specs), with P() for '
      'whole leaves'
    )
  # By `shard_map` over the axes that were automatic.
  local, named = layout.on_device(sizes), _named(layout)
  specs = shard_specs(scheme, layout, (grads, state))
  like, state_specs = specs
  moments = {}
  if scheme.memory.facts.moments:
    moments = {'second_moment': extra['second_moment']}

  def on_one(grads, state, moments):
    # Over the other axes, all devices compute the same.
    own = comm.within([a for a in sizes if a in named])
    updates, state, delivered = step(own, local, grads, state, extra | moments)

    # The compressor's state is equal on all devices with the same part of it.
    def typed(x, spec):
      held = {a for axes in cut_of(spec) for a in axes}
      return own.shards.without(held).replicated(x)

    compressor = jax.tree.map(typed, state.compressor, state_specs.compressor)
    return updates, state._replace(compressor=compressor), delivered

  return jax.shard_map(
    on_one,
    in_specs=(*specs, {name: like for name in moments}),
    out_specs=(like, state_specs, like if return_delivered else P()),
    axis_names=frozenset(sizes),
    check_vma=comm.mode == 'checked',
  )(grads, state, moments)


def _planned(step, scheme, comm, layout, grads, state, extra):
  """The step of one device, for a plan: shapes only."""
  sizes = _planned_sizes(comm.recorder.workers, layout)
  local = layout.on_device(sizes)
  specs = shard_specs(scheme, layout, (grads, state))

  def part(x, spec):
    shape = list(x.shape)
    for dimension, axes in enumerate(cut_of(spec)):
      shape[dimension] //= math.prod(sizes[a] for a in axes)
    return jnp.zeros(shape, x.dtype)

  own_grads, own_state = jax.tree.map(part, (grads, state), specs)
  if scheme.memory.facts.moments:
    extra = extra | {'second_moment': own_grads}
  return step(comm.within(tuple(sizes)), local, own_grads, own_state, extra)


def _planned_sizes(workers: Any, layout: Layout) -> dict[str, int]:
  """Sizes of the axes of param_specs, from `plan`'s num_workers."""
  told = workers if isinstance(workers, Mapping) else {}
  for axis in _named(layout):
    if axis not in told:
      raise ValueError(
        'num_workers must give the size of each mesh axis, including those of '
        f"param_specs, as in {{'replica': 2, 'fsdp': 4}}; got {workers!r}, "
        f'without {axis!r}{arguments.did_you_mean(axis, told)}'
      )
  return {axis: told[axis] for axis in _named(layout)}


def _named(layout: Layout) -> list[str]:
  """The mesh axes over which a leaf is sharded."""
  return sorted({a for i in range(len(layout.cuts)) for a in layout.axes(i)})


def _own_axes(scheme: Scheme) -> tuple[Any, ...]:
  axis = scheme.axis_name
  return axis if isinstance(axis, tuple) else (axis,)
