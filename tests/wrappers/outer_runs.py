"""Outer steps on a small tree, and runs of simulated workers."""

import functools

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

AXIS, WORKERS = gs.workers.AXIS, 4
PARAMS = {
  'a': np.float32(np.linspace(-1, 1, 40)),
  'b': np.zeros(5, np.float32),
  'c': np.ones((6, 5), np.float32),
  'd': np.full((3, 3), 0.5, np.float32),
}
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
SCHEMES = {
  'dense': gs.dense(axis_name=AXIS),
  'dropping': gs.gradient_dropping(0.2, min_size=6, axis_name=AXIS),
  'qsgd': gs.qsgd(7, min_size=6, axis_name=AXIS),
  'power_sgd': gs.power_sgd(1, axis_name=AXIS),
  'ef21': gs.ef21(0.3, min_size=6, axis_name=AXIS),
}


def moves(steps, seed=0):
  """What each worker adds to its parameters in each step."""
  rng = np.random.default_rng(seed)
  return [
    {
      name: np.float32(0.1 * rng.normal(size=(WORKERS, *x.shape)))
      for name, x in PARAMS.items()
    }
    for _ in range(steps)
  ]


@functools.cache
def every_two(name):
  """One object a scheme, so that its step is compiled once."""
  return gs.outer(SCHEMES[name], NESTEROV, sync_every=2)


@functools.cache
def stepper(tx, runner='simulate', num_workers=WORKERS):
  specs = gs.workers.specs(tx, PARAMS, num_workers)

  def step(params, state, move):
    return tx.sync(jax.tree.map(jnp.add, params, move), state)

  return gs.workers.parallel(
    step,
    runner=runner,
    num_workers=num_workers,
    in_specs=(P(AXIS), specs, P(AXIS)),
    out_specs=(P(AXIS), specs),
  )


def begin(tx, num_workers=WORKERS):
  params = gs.workers.stack(PARAMS, num_workers)
  return params, gs.workers.init(tx, PARAMS, num_workers)


def run(tx, each, runner='simulate'):
  """(parameters, state) after each step, as NumPy arrays."""
  params, state = begin(tx)
  out = []
  for move in each:
    params, state = stepper(tx, runner)(params, state, move)
    out.append(jax.tree.map(np.asarray, (params, state)))
  return out


def are_equal(params, names=tuple(PARAMS)):
  return all(np.all(params[name] == params[name][:1]) for name in names)
