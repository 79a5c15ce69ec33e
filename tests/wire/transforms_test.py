"""Every format under jit, vmap and shard_map with its replication check."""

from __future__ import annotations

from gradsparse.as_printed import run_length
from gradsparse.as_printed import word28
from gradsparse.wire import bitmap
from gradsparse.wire import elias_fano
from gradsparse.wire import exponent
from gradsparse.wire import fixed_width
from gradsparse.wire import qsgd_codes
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec
import numpy as np
import pytest
from tests import marks
from tests.wire import exponents

N = 500
K = 40


def _fixed_width(levels):
  codes = (levels + 7).astype(jnp.uint32)
  return fixed_width.unpack(fixed_width.pack(codes, 5), N, 5)


def _bitmap(levels):
  return bitmap.positions(bitmap.pack(levels != 0), K)


def _indices(levels):
  return jnp.minimum(_bitmap(levels), N)


def _elias_fano(levels):
  words = elias_fano.encode(_indices(levels), N)
  return elias_fano.decode(words, K, N)


def _run_length(levels):
  values = jnp.arange(1.0, K + 1)
  return run_length.decode(*run_length.encode(values, _indices(levels), N), N)


def _exponent(levels):
  segments = jnp.arange(N, dtype=jnp.int32) % 3
  values = levels.astype(jnp.float32) / 3
  rounded, kept, top = exponents.round_values(values, levels != 0, segments, 3)
  limit = exponents.top_of(top, segments)
  return exponent.decode(exponent.encode(rounded, limit), limit), kept


def _word28(levels):
  index = jnp.arange(N, dtype=jnp.int32)
  return word28.unpack(word28.pack(index, levels.astype(jnp.uint32)))


def _dense(levels):
  words, used = qsgd_codes.encode_dense(levels, 200, max_level=7, block=32)
  return qsgd_codes.decode_dense(words, N, max_level=7, block=32), used


def _sparse(levels):
  words, used = qsgd_codes.encode_sparse(levels, 300, max_level=7, block=32)
  return qsgd_codes.decode_sparse(words, N, max_level=7, block=32), used


FORMATS = [
  _fixed_width,
  _bitmap,
  _elias_fano,
  _run_length,
  _exponent,
  _word28,
  _dense,
  _sparse,
]


@pytest.mark.parametrize(
  'fn',
  marks.few(FORMATS, _elias_fano, _dense),
  ids=lambda fn: fn.__name__[1:],
)
def test_the_same_result_under_every_transformation(fn):
  rng = np.random.default_rng(0)
  levels = rng.integers(-7, 8, (3, N)) * (rng.random((3, N)) < 0.2)
  levels = jnp.asarray(levels, jnp.int32)
  each = [jax.jit(fn)(row) for row in levels]
  expected = jax.tree.map(lambda *x: jnp.stack(x), *each)
  batched = jax.jit(jax.vmap(fn))(levels)
  jax.tree.map(np.testing.assert_array_equal, batched, expected)
  # One device is enough for the types: outputs must be seen to vary.
  mesh = jax.make_mesh((1,), ('workers',), axis_types=(AxisType.Auto,))
  spec = PartitionSpec('workers')

  def local(rows):
    return jax.tree.map(lambda x: x[None], fn(rows[0]))

  sharded = jax.jit(
    jax.shard_map(
      local, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=True
    )
  )(levels[:1])
  jax.tree.map(
    np.testing.assert_array_equal,
    sharded,
    jax.tree.map(lambda x: x[:1], expected),
  )
