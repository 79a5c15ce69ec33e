"""The forms of a primitive give the same bits, and each platform gets its own.

Of another platform's program this machine has only the text before XLA. So the
form for other platforms is run on CPUs, operation by operation: a barrier that
is not compiled is what it is elsewhere, nothing.
"""

import math
from unittest import mock

from gradsparse import codes
from gradsparse import selection
from gradsparse.backend import barriers
from gradsparse.backend import platforms
from gradsparse.backend import reductions
from gradsparse.backend import searching
from gradsparse.selection import thresholds
from gradsparse.sockets import Context
from gradsparse.sockets import Leaves
from gradsparse.sockets import MessageLeaves
from gradsparse.sockets import Space
from gradsparse.sockets import Window
from gradsparse.sockets import sum_by_leaf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests import marks

ROWS = np.random.default_rng(0).integers(
  -(2**31), 2**31, (40, reductions.ROW), np.int64
)
FLOATS = np.float32([1.5, -0.0, 3e38, -7, np.inf, np.nan] * 300)


MANY = np.random.default_rng(1).normal(size=60_000).astype(np.float32)


def _entries(x):
  """Two messages of 40 entries."""
  indices = jnp.arange(80).reshape(2, 40) * 700
  return x[:80].reshape(2, 40), indices.at[1].add(-27_990)


def _delivered(x):
  window = Window(x[:5], jnp.int32([-3, 0, 511, 512, 60_000]), 60_000)
  leaf = x.reshape(3, 40, 500)
  squared = window.update(lambda x, sent, other: other * sent, leaf, leaf + 1)
  return window.plus(leaf, -2.0), squared, window.dense(leaf.shape)


def _rounded(x):
  """Buckets within a row, of whole rows, and that end within one."""
  shapes = [(2, 128), (8, 16), (7, 50), (3, 3, 4, 128)]
  leaves = [x[: math.prod(shape)].reshape(shape) for shape in shapes]
  ctx = Context(
    MessageLeaves(tuple(shapes)), 1, 0, jax.random.key(0), jax.random.key(1)
  )
  code = codes.qsgd.of_leaves(7, bucket_size=64)
  rounded = code.round(Leaves(leaves), ctx)
  words = code.pack(rounded, ctx)
  again = code.unpack(words, rounded, ctx)
  return words, [code.decode(r, ctx, 1).arrays for r in (rounded, again)]


def _marked(x):
  """Segments with equal numbers, one of which wants none and one all."""
  numbers = jnp.abs(x[: 70 * 32] * 2).astype(jnp.int32).reshape(70, 32)
  counts = jnp.int32([100, 0, 64, 1])
  return thresholds.largest(numbers, [40, 8, 2, 20], counts)


def _searched(ascending, x, side):
  # As if there were many: GPUs, too, search by halves.
  with mock.patch.multiple(searching, _FEW_COMPARED=0, _COMPARED=0):
    return searching.searchsorted(ascending, x, side, both_ascend=True)


def _halved_if(wanted, x):
  return barriers.in_place_if(wanted, lambda x: x / 2, x)


def _branched_if(wanted, x):
  return barriers.in_place_if(wanted, lambda x: x / 2, x, branch=True)


# They take seconds each.
SLOW = (
  'buckets',
  'chunks',
  'many_of_chunks',
  'not_all_true',
  'sparse_sum',
  'ties',
  'ties_of_chunks',
  'top_k_of_all',
  'top_k_of_each',
  'top_of_integers',
  'top_of_negatives',
)
# name -> (function of arrays, arguments)
PRIMITIVES = {
  'fusion_barrier': (lambda x, y: barriers.fusion_barrier([x, y]), (FLOATS, 1)),
  'barrier_if_shared': (lambda x: barriers.barrier_if_shared(x, 9), (FLOATS,)),
  'hidden_numbers': (lambda x: barriers.hidden_numbers(range(7), x), (FLOATS,)),
  'in_place_if': (_halved_if, (True, FLOATS)),
  'not_in_place_if': (_halved_if, (False, FLOATS)),
  'branched_if': (_branched_if, (True, FLOATS)),
  'not_branched_if': (_branched_if, (False, FLOATS)),
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
  'largest_along': (
    lambda *arrays: [
      reductions.largest_along(x, axis) for x in arrays for axis in (0, 1, 2)
    ],
    (np.float32(ROWS).reshape(5, -1, 8), FLOATS.reshape(5, -1, 8)),
  ),
  'count_along': (lambda x: reductions.count_along([x > 0, x < 0], 0), (ROWS,)),
  'searchsorted': (
    lambda x: searching.searchsorted(jnp.sort(x[0]), x, 'right'),
    (ROWS.astype(np.int32),),
  ),
  'sums_of_segments': (
    lambda x, of: searching.sums_of_segments([x, 1024 - x], of, 5),
    (np.arange(900, dtype=np.int32), np.arange(900, dtype=np.int32) // 200),
  ),
  'both_ascend_left': (
    lambda x: _searched(x[:9], x, 'left'),
    (np.arange(-9, 900, dtype=np.int32),),
  ),
  'both_ascend_right': (
    lambda x: _searched(x[:9], x, 'right'),
    (np.repeat(np.arange(300, dtype=np.int32), 3),),
  ),
  'top_k_of_each': (
    lambda x: selection.top_k_of_each([x, x[:40_000]], [50, 3]),
    (MANY,),
  ),
  'top_k_of_all': (
    lambda x: selection.top_k_of_all([x, x[:70_000] * 2], 40),
    (np.tile(MANY, 3),),
  ),
  'ties': (_marked, (MANY,)),
  # The largest stands beside the last of several equal ones.
  'ties_of_chunks': (
    lambda x: selection.chunked_top_k_of_each([x], 0.001, 4096)[:2],
    (np.float32(np.bincount([9, 40, 70, 99, 3000, *[3001] * 3, 6000])),),
  ),
  'chunks': (
    lambda x: selection.chunked_top_k_of_each([x[:50_000]], 0.001, 4096)[:2],
    (MANY,),
  ),
  'many_of_chunks': (
    lambda x: selection.chunked_top_k_of_each([x[:50_000]], 0.01, 4096)[:2],
    (MANY,),
  ),
  'sparse_sum': (
    lambda x: sum_by_leaf(*_entries(x), Space.whole([(300, 200)])),
    (MANY,),
  ),
  'window': (_delivered, (MANY,)),
  'buckets': (_rounded, (MANY,)),
}


# The forms that TPUs have for themselves.
OF_TPUS = (
  'both_ascend_left',
  'both_ascend_right',
  'buckets',
  'chunks',
  'largest_along',
  'many_of_chunks',
  'sums_of_segments',
  'ties',
  'ties_of_chunks',
  'top_k_of_all',
  'top_k_of_each',
)
FORMS = {
  f'{name}, {platform}': (name, platform)
  for platform, names in (('gpu', PRIMITIVES), ('tpu', OF_TPUS))
  for name in names
  if (name, platform) != ('sums_of_segments', 'gpu')  # the form for CPUs
}


@pytest.fixture
def other_platform(monkeypatch):
  """Within the test CPUs get the form of other platforms."""
  depends = jax.lax.platform_dependent

  def as_elsewhere(*arrays, default, cpu):
    del cpu
    return depends(*arrays, default=default)

  def turn(platform):
    jax.clear_caches()
    monkeypatch.setattr(jax.lax, 'platform_dependent', as_elsewhere)
    monkeypatch.setattr(platforms, 'name', lambda: platform)

  yield turn
  jax.clear_caches()


@pytest.mark.parametrize(
  'form',
  marks.few(FORMS, *(f for f, (name, _) in FORMS.items() if name not in SLOW)),
)
def test_forms_agree_to_the_bit(form, other_platform):
  name, platform = FORMS[form]
  fn, arguments = PRIMITIVES[name]
  arguments = [jnp.asarray(x) for x in arguments]
  on_cpus = jax.jit(fn)(*arguments)
  other_platform(platform)
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
    'branched_if',
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
