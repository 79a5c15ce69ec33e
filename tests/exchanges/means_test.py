"""The mean over senders, of every scheme that offers it."""

import inspect

import gradsparse as gs
import jax
import numpy as np
import pytest
from tests import marks
from tests import runs
from tests import schemes

WORKERS = 3
OFFERED = [
  name
  for name, recipe in gs.recipes.RECIPES.items()
  if 'mean' in inspect.signature(recipe.factory).parameters
]


def _two_steps(name, mean, shapes, **given):
  tx = schemes.example(
    name, axis_name=schemes.AXIS, mean=mean, min_size=0, **given
  )
  params = schemes.zeros(shapes)
  step = runs.vmapped(tx)
  state = gs.workers.stack(tx.init(params), WORKERS)
  seen = []
  for t in range(2):
    grads = runs.gradients(params, WORKERS, seed=t)
    moments = runs.moments(grads, seed=100 + t)
    updates, state, delivered = step(grads, state, moments)
    seen.append((updates, delivered))
  return seen, gs.pending(state)


def test_it_is_offered_by_all_that_gather_entries():
  """EF21's mean is of estimates, which all workers have everywhere."""
  assert {*OFFERED} == {
    'gradient_dropping',
    'dgc',
    'dryden',
    'strom',
    'variance_based',
    'variance_strom',
    'ada_comp',
  }


@pytest.mark.parametrize('name', marks.few(OFFERED, 'gradient_dropping'))
def test_what_was_sent_is_divided_by_those_who_sent_it(name):
  """The same messages leave the same memories; only the divisor is another."""
  _compare(name, {'kernel': (12, 10), 'bias': (11,)})


@pytest.mark.parametrize('density', [0.002, 0.05, 0.3])
def test_so_are_few_and_many_entries(density):
  """CPUs add up few in rows, and divide all elements where many were sent."""
  shapes = {'kernel': (40, 50), 'bias': (11,)}
  _compare('gradient_dropping', shapes, density=density)


def _compare(name, shapes, **given):
  of_workers, kept = _two_steps(name, 'workers', shapes, **given)
  of_senders, too = _two_steps(name, 'senders', shapes, **given)
  jax.tree.map(np.testing.assert_array_equal, kept, too)
  shared = 0
  for (mean, sent), (other, same) in zip(of_workers, of_senders, strict=True):
    jax.tree.map(np.testing.assert_array_equal, sent, same)
    for leaf in mean:
      senders = np.sum(np.asarray(sent[leaf]) != 0, axis=0)
      shared += np.sum((senders > 0) & (senders < WORKERS))
      np.testing.assert_allclose(
        other[leaf][0] * np.maximum(senders, 1),
        mean[leaf][0] * WORKERS,
        rtol=1e-6,
        atol=1e-6,
      )
  assert shared, 'all sent all, or nothing'
