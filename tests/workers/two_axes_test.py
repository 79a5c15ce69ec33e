"""Workers of several devices each: steps over two axes."""

import gradsparse as gs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import marks

_AXES = {'workers': 3, 'devices': 2}
_NODE, _EACH = P('workers'), P('workers', 'devices')


def _program(step, runner, in_specs, out_specs):
  return gs.workers.parallel(
    step,
    runner=runner,
    num_workers=_AXES,
    in_specs=in_specs,
    out_specs=out_specs,
  )


def _means(shared, own, x):
  node = gs.workers.mean(x, 'devices')
  return shared + gs.workers.mean(node), own + node, shared + own + x


@pytest.mark.parametrize(
  'runner', marks.few(['simulate', 'shard_map'], 'shard_map')
)
def test_arrays_have_the_axes_that_their_specs_name(runner):
  fn = _program(_means, runner, (P(), _NODE, _EACH), (P(), _NODE, _EACH))
  own = np.arange(3, dtype=np.float32)
  x = np.arange(6 * 4, dtype=np.float32).reshape(3, 2, 4) ** 2
  whole, nodes, each = fn(np.float32(10), own, x)
  np.testing.assert_allclose(whole, 10 + x.mean((0, 1)), rtol=1e-6)
  np.testing.assert_allclose(nodes, own[:, None] + x.mean(1), rtol=1e-6)
  np.testing.assert_allclose(each, 10 + own[:, None, None] + x, rtol=1e-6)
  with pytest.raises(ValueError, match=r'args\[2\].*\(3, 2, \.\.\.\)'):
    fn(np.float32(10), own, x.reshape(2, 3, 4))


@pytest.mark.parametrize(
  'runner', marks.few(['simulate', 'shard_map'], 'simulate')
)
def test_an_output_that_differs_inside_a_worker_is_refused(runner):
  fn = _program(lambda x: 2 * x, runner, (_EACH,), _NODE)
  with pytest.raises(ValueError) as e:
    fn.lower(jnp.ones((3, 2)))
  for said in (
    "its spec P('workers') says",
    "axis 'devices'",
    "give it P('workers', 'devices')",
  ):
    assert said in str(e.value)


@pytest.mark.parametrize(
  'spec', [P('devices', 'workers'), P('nodes'), P(('workers', 'devices'))]
)
def test_specs_name_the_axes_in_order(spec):
  with pytest.raises(ValueError, match=r"\('workers', 'devices'\).*got P"):
    _program(lambda x: x, 'simulate', (P(), spec), P())


def test_what_cannot_be_is_refused(monkeypatch):
  with pytest.raises(ValueError, match="'pmap' has one axis.*'devices': 2"):
    _program(lambda x: x, 'pmap', (P(),), P())
  monkeypatch.setattr(jax, 'devices', lambda: [None] * 5)
  with pytest.raises(ValueError, match=r'3 x 2 workers, found 5.*, 6\)'):
    _program(lambda x: x, 'shard_map', (P(),), P())
