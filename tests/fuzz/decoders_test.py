"""Decoders of words that nobody sent: in range, in time, and told of."""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import gradsparse as gs
from gradsparse.as_printed import run_length
from gradsparse.as_printed import word28
from gradsparse.collectives import Comm
from gradsparse.exchanges import common
from gradsparse.sockets import Sparse
from gradsparse.wire import bitmap
from gradsparse.wire import elias
from gradsparse.wire import elias_fano
from gradsparse.wire import exponent
from gradsparse.wire import fixed_width
from gradsparse.wire import qsgd_codes
from gradsparse.wire import streams
from hypothesis import example
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from tests import replay
from tests import schemes
from tests.fuzz import programs
from tests.wire import exponents

# A decoder that hangs is stopped.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_LEVELS = dict(static_argnums=1, static_argnames=('max_level', 'kind', 'block'))
_dense_levels = jax.jit(qsgd_codes.decode_dense, **_LEVELS)
_sparse_levels = jax.jit(qsgd_codes.decode_sparse, **_LEVELS)
_elias = jax.jit(elias.read, static_argnums=1)

PATTERNS = ('as sent', 'random', 'zeros', 'ones', 'a flipped bit')


@jax.jit
def damaged(words: jax.Array, pattern: Any, key: jax.Array) -> jax.Array:
  """uint32 words as something else, by the number of a pattern."""
  where, bit = jax.random.randint(key, (2,), 0, 2**30)
  place = jnp.arange(words.size).reshape(words.shape) == where % words.size
  flipped = words ^ (place.astype(jnp.uint32) << (bit % 32).astype(jnp.uint32))
  noise = jax.random.bits(key, words.shape, jnp.uint32)
  zeros = jnp.zeros_like(words)
  return jnp.select(
    [pattern == i for i in range(len(PATTERNS))],
    [words, noise, zeros, ~zeros, flipped],
  )


# --- wire formats ------------------------------------------------------------


def ascending(x):
  return np.all(np.diff(x) >= 0)


def check_fixed_width(words):
  n, width = 40, 13
  words = words[: fixed_width.words(n, width)]
  codes = fixed_width.unpack(words, n, width)
  assert np.all(codes < 2**width)
  again = fixed_width.pack(codes, width)
  assert np.array_equal(again[:-1], words[:-1])  # the last is not full


def check_bitmap(words):
  words, count = words[:7], 40
  positions = np.asarray(bitmap.positions(words, count))
  assert ascending(positions) and 0 <= positions[0] <= positions[-1] <= 224
  found = np.flatnonzero(bitmap.unpack(words, 224))[:count]
  assert np.array_equal(positions[: found.size], found)
  assert np.all(positions[found.size :] == 224)


def check_elias_fano(words, count, size):
  words = words[: elias_fano.words(count, size)]
  indices = elias_fano.decode(words, count, size)
  assert np.all((0 <= indices) & (indices <= size))


def check_run_length(words):
  """Sorted whatever comes, and empty slots are last."""
  count, size = 30, 10**6
  values, runs = words[:count], words[count : count + run_length.words(count)]
  values, indices = run_length.decode(fixed_width.floats_of(values), runs, size)
  assert ascending(indices) and np.all((0 <= indices) & (indices <= size))
  assert np.all(np.diff(indices[indices < size]) > 0)
  assert not np.any(values[indices == size])


def check_word28(words):
  indices, codes = word28.unpack(words)
  assert np.all((0 <= indices) & (indices < 2**28)) and np.all(codes < 16)
  assert np.array_equal(word28.pack(indices, codes), words)


def check_exponent(words):
  codes = fixed_width.unpack(words[:8], 64, 4)
  tops = fixed_width.unpack(words[8:10], 8, 8).astype(jnp.int32)
  segments = jnp.arange(64, dtype=jnp.int32) % 10  # two are out of range
  limit = exponents.top_of(tops, segments)
  values = np.asarray(exponent.decode(codes, limit))
  assert not np.any(np.isnan(values))
  mantissas, _ = np.frexp(values[np.isfinite(values)])
  assert set(np.abs(mantissas)) <= {0.0, 0.5}  # powers of two


def check_floats(words):
  assert np.array_equal(
    fixed_width.of_floats(fixed_width.floats_of(words)), words
  )
  halves = fixed_width.unpack_bfloat16(words, 2 * words.size)
  assert np.array_equal(fixed_width.pack_bfloat16(halves), words)


def check_elias(words, kind):
  values, lengths = _elias(words, kind, words[::-1])
  assert values.shape == words.shape
  assert np.all((1 <= lengths) & (lengths <= 95))


def check_dense_levels(words, kind):
  levels = _dense_levels(words, 300, max_level=7, kind=kind, block=64)
  assert levels.shape == (300,) and levels.dtype == jnp.int32


def check_sparse_levels(words, kind):
  """However many nonzeros it announces, it reads what there can be."""
  levels = _sparse_levels(words, 300, max_level=7, kind=kind, block=16)
  assert levels.shape == (300,) and levels.dtype == jnp.int32


@jax.jit
def _symbols(words):
  def reader(words, positions):
    window = streams.window(words, positions)
    far = window & np.uint32(2**31)  # beyond the end, and around it
    return window >> 20, positions + 1 + far

  return streams.decode(words, 200, reader, 32, max_length=32)


def check_stream(words):
  assert _symbols(words).shape == (200,)


FORMATS: dict[str, Callable[[jax.Array], None]] = {
  'fixed_width': check_fixed_width,
  'bitmap': check_bitmap,
  'run_length': check_run_length,
  'word28': check_word28,
  'exponent': check_exponent,
  'floats': check_floats,
  'stream': check_stream,
}
for _kind in elias.KINDS:
  for _name, _check in (
    ('elias', check_elias),
    ('dense_levels', check_dense_levels),
    ('sparse_levels', check_sparse_levels),
  ):
    FORMATS[f'{_name}_{_kind}'] = functools.partial(_check, kind=_kind)
for _count, _size in ((1, 2**31 - 1), (2, 2**31 - 1), (40, 9), (33, 5000)):
  FORMATS[f'elias_fano_{_count}_{_size}'] = functools.partial(
    check_elias_fano, count=_count, size=_size
  )


@pytest.mark.parametrize('name', FORMATS)
@programs.budget(15)
@given(st.sampled_from(range(1, len(PATTERNS))), st.integers(0, 2**32 - 1))
def test_a_wire_format_reads_any_words(name, pattern, seed):
  key = jax.random.key(seed)
  FORMATS[name](damaged(jnp.zeros(64, jnp.uint32), pattern, key))


# --- codes -------------------------------------------------------------------


@functools.cache
def reader(name):
  """Compiled (grads, pattern, seed) -> (what was rounded, what is unpacked).

  The setting's own message of one worker, taken from its exchange; of the
  largest size, so that nothing stands between the exchange and the result.
  """
  tx = schemes.BY_NAME[name].make(None)
  compressor, exchange = tx.scheme.compressor, tx.scheme.exchange
  if compressor.ladder is not None:
    ladder = compressor.ladder
    largest = ladder._replace(rungs=lambda shapes: ladder.rungs(shapes)[-1:])
    compressor = compressor._replace(ladder=largest)

  def unpacked(grads, pattern, seed):
    seen = []

    def run(message, comm):
      words = common.to_words(message.words)
      words = damaged(words, pattern, jax.random.key(seed))
      words = common.from_words(words, message.words, verdict=False)
      got = message.code.unpack(words, message.rounded, message.ctx)
      seen.append((message.rounded, got))
      return exchange.run(message, comm)

    looking = exchange._replace(run=run)
    scheme = tx.scheme._replace(compressor=compressor, exchange=looking)
    looked_at = gs.compressed_mean(**scheme._asdict())
    state = looked_at.init(programs.PARAMS)
    squares = jax.tree.map(jnp.square, grads)
    looked_at.update(grads, state, second_moment=squares)
    return seen[-1]

  args = programs.PARAMS, jnp.int32(0), jnp.uint32(0)
  return jax.jit(unpacked).lower(*args).compile(replay.QUICKLY)


@pytest.mark.parametrize('name', schemes.BY_NAME)
@programs.budget(15)
@given(st.sampled_from(range(len(PATTERNS))), st.integers(0, 2**32 - 1))
def test_a_code_unpacks_any_words(name, pattern, seed):
  unpack = reader(name)
  grads = jax.tree.map(lambda g: g[0], programs.normal(1, seed))
  rounded, got = unpack(grads, np.int32(pattern), np.uint32(seed))
  # Levels are rounded in the leaf's own shape, and unpacked in rows.
  form = lambda tree: [(x.size, x.dtype) for x in jax.tree.leaves(tree)]
  assert type(got) is type(rounded) and form(got) == form(rounded)
  if isinstance(got, Sparse):
    indices, values = np.asarray(got.indices), np.asarray(got.values)
    assert np.all((0 <= indices) & (indices <= got.space.size)), indices
    assert not np.any(values[indices == got.space.size])


# --- messages ----------------------------------------------------------------

# For each way in which messages travel.
CARRIED = {
  'dropping': ('gather',),
  'dropping_thick': ('sum',),
  'dgc_runs': ('gather',),
  'ef21_exponent4': ('gather',),
  'strom': ('gather',),
  'qsgd_elias': ('gather',),
  'qsgd_elias_dense': ('gather',),
  'qsgd_scatter': ('all_to_all', 'gather'),
  'one_bit_scatter': ('all_to_all', 'gather'),
  'sign_memory': ('gather',),
  'sign_scatter': ('all_to_all', 'gather'),
  'gtopk': ('permute',),
  'gtopk_tree': ('permute',),
  'gtopk_allgather': ('gather',),
  'power_sgd': ('sum',),
}
WORKERS = 3


@functools.cache
def damaging(name, verify):
  """(state, compiled (state, grads, moments, pattern, seed) -> ..).

  The last worker gets what the pattern makes of each message, but for the
  first word, which says whether the sender is healthy.
  """
  tx = schemes.BY_NAME[name].make()
  if verify:
    tx = gs.compressed_mean(**tx.scheme._replace(verify=True)._asdict())
  specs = gs.workers.specs(tx, programs.PARAMS, WORKERS)

  def one(state, grads, moments, pattern, seed):
    last = jnp.where(
      jax.lax.axis_index(schemes.AXIS) == WORKERS - 1, pattern, 0
    )
    key = jax.random.key(seed)

    def changed(method, original):
      def carry(self, x, *args):
        leaves, treedef = jax.tree.flatten(original(self, x, *args))
        # Of a sum the last is the count of those who are not healthy.
        for i in range(max(len(leaves) - 1, 1) if method == 'sum' else 1):
          words = jax.lax.bitcast_convert_type(leaves[i], jnp.uint32)
          if method == 'sum':
            words = damaged(words, last, key)
          elif words.shape[-1] > 1:
            words = words.at[..., 1:].set(damaged(words[..., 1:], last, key))
          leaves[i] = jax.lax.bitcast_convert_type(words, leaves[i].dtype)
        return jax.tree.unflatten(treedef, leaves)

      return carry

    with pytest.MonkeyPatch.context() as patch:
      for method in CARRIED[name]:
        original = getattr(Comm, method)
        patch.setattr(Comm, method, changed(method, original))
      return tx.update(grads, state, second_moment=moments)

  fn = gs.workers.parallel(
    one,
    runner='simulate',
    num_workers=WORKERS,
    in_specs=(specs, programs.OWN, programs.OWN, P(), P()),
    out_specs=(programs.OWN, specs),
    check_vma=False,  # what is gathered differs, for once
  )
  state = programs.numbers(gs.workers.init(tx, programs.PARAMS, WORKERS))
  grads = programs.normal(WORKERS, 0)
  args = state, grads, programs.moments(grads), np.int32(0), np.uint32(0)
  return state, fn.lower(*args).compile(replay.QUICKLY)


@pytest.mark.parametrize('verify', [True, False])
@pytest.mark.parametrize('name', CARRIED)
@programs.budget(15)
@example(1, 3131096086)  # what an exchange owes overflows
@example(1, 3698947309)
@given(st.sampled_from(range(1, len(PATTERNS))), st.integers(0, 2**32 - 1))
def test_a_damaged_message_leaves_the_state_sound(name, verify, pattern, seed):
  """And with `verify` all workers reject the step."""
  state, step = damaging(name, verify)
  grads = programs.normal(WORKERS, seed)
  second = programs.moments(grads)
  run = lambda state, pattern: programs.numbers(
    step(state, grads, second, np.int32(pattern), np.uint32(seed))
  )
  updates, after = run(state, pattern)
  for path, x in jax.tree_util.tree_leaves_with_path(after):
    assert np.all(np.isfinite(x)), jax.tree_util.keystr(path)
  if verify:
    assert np.all(after.stats.rejected_steps == 1)
    assert all(np.all(np.isnan(u)) for u in jax.tree.leaves(updates))
    updates, after = run(after, 0)
    assert np.all(after.stats.rejected_steps == 1)
    assert all(np.all(np.isfinite(u)) for u in jax.tree.leaves(updates))
