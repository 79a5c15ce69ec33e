"""Sums of messages have the same bits in the forms for CPUs, GPUs and TPUs.

CPUs run all forms here; what a form selects before is in tests/backend.
"""

import functools

import gradsparse as gs
from gradsparse.backend import platforms
import jax
import numpy as np
import pytest
from tests import marks
from tests import replay

WORKERS = 3
SHAPES = {'kernel': (40, 50), 'bias': (11,)}
_dropping = functools.partial(gs.gradient_dropping, axis_name=replay.AXIS)
SCHEMES = {
  'few': _dropping(0.002),
  'some': _dropping(0.05),
  'many': _dropping(0.2, values='exponent4'),
  'few of senders': _dropping(0.002, mean='senders'),
  'some of senders': _dropping(0.05, mean='senders'),
  'many of senders': _dropping(0.3, mean='senders'),
  'by rule': gs.strom(1.0, axis_name=replay.AXIS),
  'by rule of senders': gs.strom(1.0, mean='senders', axis_name=replay.AXIS),
  'levels': gs.qsgd(7, min_size=0, axis_name=replay.AXIS),
  'signs': gs.one_bit_sgd(axis_name=replay.AXIS),
}


def _mean(tx, platform, monkeypatch):
  """The update of one step, as a program for the platform computes it."""
  monkeypatch.setattr(platforms, 'name', lambda: platform)
  jax.clear_caches()
  rng = np.random.default_rng(0)
  # Workers mostly agree on the largest elements: all send some of them.
  grads = {
    name: np.float32(
      rng.normal(size=shape) + 0.3 * rng.normal(size=(WORKERS, *shape))
    )
    for name, shape in SHAPES.items()
  }
  params = {name: x[0] for name, x in grads.items()}
  state = gs.workers.stack(tx.init(params), WORKERS)
  step = jax.vmap(lambda g, s: tx.update(g, s)[0], axis_name=replay.AXIS)
  return jax.jit(step).lower(grads, state).compile(replay.QUICKLY)(grads, state)


@pytest.mark.parametrize('platform', ['gpu', 'tpu'])
@pytest.mark.parametrize(
  'name', marks.few(SCHEMES, 'few', 'some of senders', 'signs')
)
def test_forms_agree_to_the_bit(name, platform, monkeypatch):
  own, theirs = (
    _mean(SCHEMES[name], x, monkeypatch) for x in ('cpu', platform)
  )
  assert any(np.any(x) for x in own.values())
  jax.tree.map(np.testing.assert_array_equal, own, theirs)


@pytest.fixture(autouse=True)
def _cached_programs_of_other_platforms_are_dropped():
  yield
  jax.clear_caches()
