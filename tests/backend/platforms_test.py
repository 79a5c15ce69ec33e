"""The forms of a primitive give the same bits, and each platform gets its own.

Of another platform's program this machine has only the text before XLA. So the
form for other platforms is run on CPUs, operation by operation: a barrier that
is not compiled is what it is elsewhere, nothing.
"""

from gradsparse.backend import barriers
from gradsparse.backend import platforms
from gradsparse.backend import reductions
import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROWS = np.random.default_rng(0).integers(
  -(2**31), 2**31, (40, reductions.LANES), np.int64
)
FLOATS = np.float32([1.5, -0.0, 3e38, -7, np.inf, np.nan] * 300)


def _halved_if(wanted, x):
  return barriers.in_place_if(wanted, lambda x: x / 2, x, x / 2)


# name -> (function of arrays, arguments)
PRIMITIVES = {
  'fusion_barrier': (lambda x, y: barriers.fusion_barrier([x, y]), (FLOATS, 1)),
  'barrier_if_shared': (lambda x: barriers.barrier_if_shared(x, 9), (FLOATS,)),
  'hidden_numbers': (lambda x: barriers.hidden_numbers(range(7), x), (FLOATS,)),
  'in_place_if': (_halved_if, (True, FLOATS)),
  'not_in_place_if': (_halved_if, (False, FLOATS)),
  'row_max': (reductions.row_max, (ROWS.astype(np.int32),)),
  'top': (reductions.top, (np.where(np.isfinite(FLOATS), FLOATS, 2),)),
  'top_of_integers': (reductions.top, (ROWS.reshape(-1).astype(np.int32),)),
  'all_true': (
    lambda x, y: reductions.all_true(jnp.isfinite, [(x,), (y,)]),
    (FLOATS[:4], np.ones((40, 1000), np.float32)),
  ),
  'not_all_true': (
    lambda x, y: reductions.all_true(jnp.isfinite, [(x,), (y,)]),
    (np.ones((40, 1000), np.float32), FLOATS),
  ),
  'count': (
    lambda x, y: reductions.count([x > 0, y > 0]),
    (FLOATS, np.float32(ROWS)),
  ),
  'top_of_negatives': (reductions.top, (-np.abs(FLOATS[:3]),)),
}


@pytest.fixture
def other_platform(monkeypatch):
  """Within the test CPUs get the form of other platforms."""
  depends = jax.lax.platform_dependent

  def as_elsewhere(*arrays, default, cpu):
    del cpu
    return depends(*arrays, default=default)

  def turn():
    jax.clear_caches()
    monkeypatch.setattr(jax.lax, 'platform_dependent', as_elsewhere)

  yield turn
  jax.clear_caches()


@pytest.mark.parametrize('name', PRIMITIVES)
def test_forms_agree_to_the_bit(name, other_platform):
  fn, arguments = PRIMITIVES[name]
  arguments = [jnp.asarray(x) for x in arguments]
  on_cpus = jax.jit(fn)(*arguments)
  other_platform()
  elsewhere = fn(*arguments)
  jax.tree.map(
    lambda a, b: np.testing.assert_equal(
      np.asarray(a).tobytes(), np.asarray(b).tobytes()
    ),
    on_cpus,
    elsewhere,
  )


@pytest.mark.parametrize(
  'name',
  [
    'fusion_barrier',
    'barrier_if_shared',
    'hidden_numbers',
    'in_place_if',
    'not_in_place_if',
  ],
)
@pytest.mark.parametrize('platform', ['tpu', 'cuda'])
def test_no_other_platform_has_a_loop(name, platform):
  fn, arguments = PRIMITIVES[name]
  traced = jax.jit(fn).trace(*map(jnp.asarray, arguments))
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert 'stablehlo.while' not in text
  assert 'stablehlo.while' in traced.lower().as_text()


def test_a_form_is_chosen_where_the_program_is_lowered():
  one = platforms.elsewhere(lambda x: x - 1)(lambda x: x + 1)
  traced = jax.jit(one).trace(jnp.zeros(()))
  assert 'add' in traced.lower().as_text()
  tpu = traced.lower(lowering_platforms=('tpu',)).as_text()
  assert 'subtract' in tpu and 'add' not in tpu
