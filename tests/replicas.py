"""A scheme on replicas of several devices: programs on a mesh, and pieces.

A replica is a worker whose leaves are sharded over the other mesh axes. What
comes of it is compared with the plain scheme, simulated on the pieces that
each device has.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from tests import replay

REPLICA = 'replica'
# Meshes by name: the axis of the replicas, and those inside of one.
MESHES = {
  '2x2': {REPLICA: 2, 'fsdp': 2},
  '2x4': {REPLICA: 2, 'fsdp': 4},
  '4x2': {REPLICA: 4, 'fsdp': 2},
  '2x2x2': {REPLICA: 2, 'fsdp': 2, 'tp': 2},
}
# How leaves are sharded: over one axis, over two, and not at all. Two leaves
# each, of which every device has pieces of the same two shapes.
SPECS = {
  'both': P('fsdp', 'tp'),
  'columns': P(None, 'fsdp'),
  'joint': P(('fsdp', 'tp')),
  'rows': P('fsdp', None),
  'whole': P(),
  'wide': P(),
}
SHAPES = {
  'both': (4, 5),
  'columns': (4, 5),
  'joint': (2, 7),
  'rows': (2, 7),
  'whole': (4, 5),
  'wide': (2, 7),
}


def specs_on(sizes: dict[str, int]) -> dict[str, P]:
  """Those of SPECS whose axes a mesh has."""
  return {k: s for k, s in SPECS.items() if set(axes_of(s)) <= set(sizes)}


def params_on(sizes: dict[str, int]) -> dict[str, jax.Array]:
  """Leaves whose pieces are SHAPES."""
  out = {}
  for name, spec in specs_on(sizes).items():
    shape = list(SHAPES[name])
    for dimension, axes in enumerate(divided(spec)):
      shape[dimension] *= math.prod(sizes[a] for a in axes)
    out[name] = jnp.zeros(shape)
  return out


def mesh_of(sizes: dict[str, int], *, explicit: bool = False):
  """A mesh of the first devices."""
  kind = AxisType.Explicit if explicit else AxisType.Auto
  return jax.make_mesh(
    tuple(sizes.values()),
    tuple(sizes),
    axis_types=(kind,) * len(sizes),
    devices=jax.devices()[: math.prod(sizes.values())],
  )


def draw(params, replicas, *, seed, dtype=jnp.float32):
  """Normal gradients with a leading axis of replicas."""
  rng = np.random.default_rng([seed, replicas])
  return jax.tree.map(
    lambda p: jnp.asarray(rng.normal(size=(replicas, *p.shape)), dtype), params
  )


class Program:
  """A compiled `tx.step` on a mesh where only the replicas' axis is manual.

  Attributes:
    state: the first one, with worker axes.
    compiled: of (state, grads, moments) -> (updates, delivered, state).
  """

  def __init__(
    self,
    tx,
    mesh,
    *,
    specs,
    params,
    check_vma=True,
    dtype=jnp.float32,
    local_updates=False,
    donate=False,
  ):
    self.local_updates = local_updates
    self.tx, self.mesh, self.params = tx, mesh, params
    self.replicas = mesh.shape[REPLICA]
    self.specs = jax.tree.broadcast(
      specs, params, is_leaf=lambda x: isinstance(x, P)
    )
    self.state = gs.workers.init(tx, params, self.replicas, REPLICA)
    self.state_specs = gs.workers.specs(tx, params, self.replicas, REPLICA)
    if AxisType.Explicit in mesh.axis_types:  # types say where arrays lie
      self.state = jax.tree.map(
        lambda x, s: jax.device_put(x, NamedSharding(mesh, s)),
        self.state,
        self.state_specs,
      )
    grads = self.place(draw(params, self.replicas, seed=0, dtype=dtype))
    self.lowered = jax.jit(
      self.mapped(check_vma), donate_argnums=(0,) if donate else ()
    ).lower(self.state, grads, grads)
    self.compiled = self.lowered.compile(replay.QUICKLY)
    wanted = self.compiled.input_shardings[0][0]
    self.state = jax.device_put(self.state, wanted)
    self._state_shardings = wanted

  def mapped(self, check_vma):
    step = getattr(self.tx, 'step', None)
    if step is None:

      def step(grads, state, **extra):
        updates, state = self.tx.update(grads, state, self.params, **extra)
        return updates, state, grads

    def on_one(state, grads, moments):
      own = lambda x, s: x[0] if s != P() else x
      state = jax.tree.map(own, state, self.state_specs)
      grads, moments = jax.tree.map(lambda x: x[0], (grads, moments))
      out, state, told = step(grads, state, second_moment=moments)
      back = lambda x, s: x[None] if s != P() else x
      state = jax.tree.map(back, state, self.state_specs)
      if self.local_updates:
        out = jax.tree.map(lambda x: x[None], out)
      return out, jax.tree.map(lambda x: x[None], told), state

    return jax.shard_map(
      on_one,
      mesh=self.mesh,
      in_specs=(self.state_specs, P(REPLICA), P(REPLICA)),
      out_specs=(
        P(REPLICA) if self.local_updates else P(),
        P(REPLICA),
        self.state_specs,
      ),
      axis_names={REPLICA},
      check_vma=check_vma,
    )

  def place(self, tree):
    """Gradients where the program wants them."""
    return jax.tree.map(
      lambda x, s: jax.device_put(x, NamedSharding(self.mesh, P(REPLICA, *s))),
      tree,
      self.specs,
    )

  def __call__(self, state, grads, moments=None):
    moments = jax.tree.map(jnp.square, grads) if moments is None else moments
    state = jax.device_put(state, self._state_shardings)
    return self.compiled(state, self.place(grads), self.place(moments))


def divided(spec: P) -> list[tuple[str, ...]]:
  """The axes of each dimension."""
  return [(a,) if isinstance(a, str) else tuple(a or ()) for a in spec]


def axes_of(spec: P) -> tuple[str, ...]:
  return tuple(sorted(a for axes in divided(spec) for a in axes))


def groups(specs: dict[str, P]) -> dict[tuple[str, ...], list[str]]:
  """The names of the leaves that are divided over the same axes."""
  out: dict[tuple[str, ...], list[str]] = {}
  for name, spec in specs.items():
    out.setdefault(axes_of(spec), []).append(name)
  return out


def piece(x: Any, spec: P, sizes: dict[str, int], place: dict[str, int]):
  """What the devices at `place` have of a leaf with an axis of replicas."""
  x = np.asarray(x)
  for dimension, axes in enumerate(divided(spec), 1):
    number = 0
    for axis in axes:
      number = number * sizes[axis] + place[axis]
    parts = math.prod(sizes[a] for a in axes)
    x = np.split(x, parts, axis=dimension)[number]
  return x


def places(axes, sizes):
  """Where along these axes a device can be."""
  for numbers in itertools.product(*(range(sizes[a]) for a in axes)):
    yield dict(zip(axes, numbers, strict=True))


def pieces(tree, specs, sizes):
  """What each device of a replica has of each group, one after the other.

  Args:
    tree: by name, leaves with an axis of replicas.
    specs: by name.
    sizes: of the mesh axes.

  Returns:
    A list of trees by the numbers of leaves in their group.
  """
  return [
    {
      number: piece(tree[name], specs[name], sizes, at)
      for number, name in enumerate(names)
    }
    for axes, names in groups(specs).items()
    for at in places(axes, sizes)
  ]


def devices_of(array):
  """(device, index of the part, values) of all copies."""
  for copy in array.addressable_shards:
    yield copy.device.id, str(copy.index), np.asarray(copy.data)


def check_copies(tree):
  """All devices that have the same part of an array have the same bits."""
  for x in jax.tree.leaves(tree):
    first = {}
    for _, index, values in devices_of(x):
      np.testing.assert_array_equal(
        values.reshape(-1).view(np.uint8),
        first.setdefault(index, values).reshape(-1).view(np.uint8),
      )


def beside_whole_leaves(tx, plain_tx, specs, params, *, steps=3, **options):
  """A transformation on 2x2x2 devices, and another on simulated whole leaves.

  Args:
    tx: with schemes by `gs.sharded`.
    plain_tx: without.
    specs: of the parameters.
    params: whole.
    steps: how many.
    **options: of `Program`.

  Yields:
    (updates, state, those of plain_tx) of each step, on the host; updates with
    an axis of replicas.
  """
  program = Program(
    tx, mesh_of(MESHES['2x2x2']), specs=specs, params=params, **options
  )
  state = program.state
  plain_state = gs.workers.init(plain_tx, params, 2, REPLICA)
  axes = jax.tree.map(
    lambda s: 0 if s == P(REPLICA) else None, program.state_specs
  )

  def one(grads, state):
    return plain_tx.update(grads, state, params)

  mapped = jax.vmap(
    one, axis_name=REPLICA, in_axes=(0, axes), out_axes=(0, axes)
  )
  dtype = options.get('dtype', jnp.float32)
  grads = [draw(params, 2, seed=t, dtype=dtype) for t in range(steps)]
  plain = jax.jit(mapped).lower(grads[0], plain_state).compile(replay.QUICKLY)
  for g in grads:
    updates, _, state = program(state, g)
    check_copies((updates, state))
    if not program.local_updates:
      updates = gs.workers.stack(jax.device_get(updates), 2)
    expected, plain_state = plain(g, plain_state)
    yield jax.device_get((updates, state, expected, plain_state))
