"""One compiled program per (setting, workers, runner), and what it did.

`run` takes a few steps and keeps everything that the laws look at as NumPy
arrays, so each program is compiled once, however many laws read it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import gradsparse as gs
import jax
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from tests import replay
from tests import schemes

STEPS = 5
# In this step the last worker's gradient has a NaN.
POISONED = 3
# The seed of the first step's second moments.
MOMENTS = 100
OWN = P(schemes.AXIS)


class Case(NamedTuple):
  """What to run."""

  setting: str
  num_workers: int
  runner: str

  def __str__(self) -> str:
    return f'{self.setting}-{self.num_workers}-{self.runner}'


class Step(NamedTuple):
  """One step of all workers.

  Attributes:
    grads: what went in; each leaf has a leading worker axis.
    healthy: bool[P], whose gradient was finite.
    before: state before it.
    after: state after it.
    updates: each worker's own copy of what came back.
    copies: for each leaf of the update returned as replicated, what each
      device holds.
    delivered: what of each worker's is in the mean.
  """

  grads: Any
  healthy: np.ndarray
  before: Any
  after: Any
  updates: Any
  copies: list[list[np.ndarray]]
  delivered: Any


class Run(NamedTuple):
  """All steps of one program.

  Attributes:
    setting: what ran.
    steps: in order.
    avals: types of the state's leaves that go in, and that come out.
    resumed: state and update of the last step, repeated from a copy of the
      state that went through NumPy.
    audit: of the compiled program; None where there is no mesh.
  """

  setting: schemes.Setting
  steps: list[Step]
  avals: tuple[list[Any], list[Any]]
  resumed: tuple[Any, Any]
  audit: gs.Audit | None


def vmapped(tx):
  """The compiled step of simulated workers: (grads, state, moments) -> step."""
  return jax.jit(
    jax.vmap(
      lambda grads, state, m: tx.step(grads, state, second_moment=m),
      axis_name=schemes.AXIS,
    )
  )


def gradients(params, num_workers, seed):
  """Different normal numbers on each worker, with a leading worker axis."""
  rng = np.random.default_rng(seed)
  draw = lambda p: np.asarray(
    rng.normal(size=(num_workers, *p.shape)), np.float32
  )
  return jax.tree.map(draw, params)


def moments(grads, seed):
  """Second moments that let some of the elements pass."""
  rng = np.random.default_rng(seed)
  draw = lambda g: np.asarray(g**2 * rng.random(g.shape), np.float32)
  return jax.tree.map(draw, grads)


def poison(grads):
  """One NaN, on the last worker."""
  kernel = grads['kernel'].copy()
  kernel[-1].flat[3] = np.nan
  return grads | {'kernel': kernel}


def to_numpy(tree):
  return jax.tree.map(np.asarray, tree)


@functools.cache
def specs_of(name: str):
  """Which state is worker-local does not depend on how many there are."""
  setting = schemes.BY_NAME[name]
  return replay.specs_of(setting.make(None).init(setting.params))


def place(num_workers, tree, specs):
  """On a mesh, as the results will lie."""
  mesh = jax.make_mesh(
    (num_workers,),
    (schemes.AXIS,),
    axis_types=(AxisType.Auto,),
    devices=jax.devices()[:num_workers],
  )
  return jax.tree.map(
    lambda spec, subtree: jax.device_put(subtree, NamedSharding(mesh, spec)),
    specs,
    tree,
    is_leaf=lambda x: isinstance(x, P),
  )


@functools.cache
def run(case: Case) -> Run:
  """Compiles and runs a setting of the list, once a process."""
  setting, (_, num_workers, runner) = schemes.BY_NAME[case.setting], case
  tx, params, specs = setting.make(), setting.params, specs_of(case.setting)
  in_specs = (specs, OWN, OWN)

  def step(state, grads, second_moment):
    updates, state, delivered = tx.step(
      grads, state, second_moment=second_moment
    )
    return updates, updates, state, delivered

  fn = gs.workers.parallel(
    step,
    runner=runner,
    num_workers=num_workers,
    in_specs=in_specs,
    out_specs=(P(), OWN, specs, OWN),
    # Types are the same for all runners; to check them is one more trace.
    check_vma=runner == 'shard_map',
  )

  def inputs(t, state):
    grads = gradients(params, num_workers, seed=t)
    second_moment = moments(grads, seed=MOMENTS + t)
    args = (state, poison(grads) if t == POISONED else grads, second_moment)
    if runner == 'shard_map':
      args = place(num_workers, args, in_specs)
    return args

  state = replay.stacked(tx.init(params), specs, num_workers)
  audit, avals = None, ([], [])
  if runner != 'pmap':
    traced = fn.trace(*inputs(0, state))
    first, last = traced.jaxpr.in_avals, jax.tree.leaves(traced.out_info[2])
    avals = (first[: len(last)], last)
    fn = traced.lower().compile(replay.QUICKLY)
    audit = gs.audit(fn) if runner == 'shard_map' else None

  steps = []
  for t in range(STEPS):
    args = inputs(t, state)
    returned, updates, state, delivered = fn(*args)
    healthy = np.ones(num_workers, bool)
    healthy[-1] = t != POISONED
    held = lambda x: [np.asarray(s.data) for s in x.addressable_shards]
    steps.append(
      Step(
        grads=to_numpy(args[1]),
        healthy=healthy,
        before=to_numpy(args[0]),
        after=to_numpy(state),
        updates=to_numpy(updates),
        copies=[held(x) for x in jax.tree.leaves(returned)],
        delivered=to_numpy(delivered),
      )
    )
  _, again, state, _ = fn(*inputs(STEPS - 1, steps[-1].before))
  return Run(setting, steps, avals, to_numpy((state, again)), audit)


def as_oracles_see_it(case: Case) -> list[replay.Step]:
  """The simulated steps before the one with a NaN, in the form of `replay`."""
  out = []
  for t, step in enumerate(run(case).steps[:POISONED]):
    pending = gs.pending(step.after)
    if not step.after.owes():
      # Without memory there is no worker axis: everybody owes nothing.
      pending = gs.workers.stack(pending, case.num_workers)
    out.append(
      replay.Step(
        replay.unstack(step.grads),
        replay.unstack(moments(step.grads, seed=MOMENTS + t)),
        [x[0] for x in jax.tree.leaves(step.updates)],
        replay.unstack(step.delivered),
        replay.unstack(pending),
        {k: float(v) for k, v in gs.metrics(step.after).items()},
        step.after,
      )
    )
  return out
