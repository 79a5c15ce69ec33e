"""QSGD: the quantiser, its bounds, its codes, and the gradient-descent variant.

Quantising is float32 (a = |v|/norm, then a·s, then floor); the 2-norm of a
bucket is summed in float64 and rounded to float32. Bounds and bit counts are
Python floats.

References: arXiv 1610.02132, eq. 4, lemma 3.1, theorem 3.2, corollary 3.3, §4.
"""

import math

import numpy as np
from tests.oracles import leaves


def bucket_ranges(n, bucket_size):
  """Returns (start, stop) of the buckets: consecutive, the last may be short.

  >>> bucket_ranges(5, 2)
  [(0, 2), (2, 4), (4, 5)]
  """
  return [(a, min(a + bucket_size, n)) for a in range(0, n, bucket_size)]


def buckets(shape, bucket_size):
  """The buckets of a leaf, as lists of indices in C order.

  A leaf (taps.., in, out) of three and more dimensions has a receptive field
  for each (in, out): the elements of all taps. A bucket holds as many whole
  fields as fit. A field with more elements than that is split into the fewest
  parts that fit, equally long but for the last. Other leaves have fields of
  one element.

  >>> buckets((2, 1, 3), 5)
  [[0, 3, 1, 4], [2, 5]]
  >>> buckets((5, 1, 1), 3)
  [[0, 1, 2], [3, 4]]
  """
  places = np.arange(np.prod(shape, dtype=int)).reshape(shape)
  if len(shape) < 3:
    fields = [[i] for i in places.ravel().tolist()]
  else:
    fields = [
      places[..., i, o].ravel().tolist()
      for i in range(shape[-2])
      for o in range(shape[-1])
    ]
  out, room = [], 0
  for field in fields:
    if len(field) > bucket_size:
      parts = math.ceil(len(field) / bucket_size)
      ranges = bucket_ranges(len(field), math.ceil(len(field) / parts))
      out += [field[start:stop] for start, stop in ranges]
      continue
    if room < len(field):
      out.append([])
      room = bucket_size
    out[-1] += field
    room -= len(field)
  return out


def bucket_scale(bucket, norm):
  """The bucket's 2-norm ('l2', the theory) or its max ('max', §4)."""
  if norm == 'max':
    return np.float32(max(abs(x) for x in bucket))
  if norm == 'l2':
    return np.float32(math.sqrt(sum(float(x) ** 2 for x in bucket)))
  raise ValueError(f"norm must be 'max' or 'l2', got {norm!r}")


def code(v, levels, bucket_size, norm, uniforms):
  """What goes on the wire: a scale a bucket, a signed integer an element.

  With a = |v_i|/scale and l = floor(a·s): the level is l + 1 where the uniform
  draw, from [0, 1), is below a·s - l, else l. sign(0) = +1. A bucket of zeros
  has scale 0 and levels 0: Q(0) = 0.

  Returns:
    scales, float32, one a bucket; signed levels, int64, flat.
  """
  v = np.ravel(np.asarray(v, np.float32))
  uniforms = np.ravel(np.asarray(uniforms, np.float32))
  s = np.float32(levels)
  scales = []
  signed = np.zeros(v.size, np.int64)
  for start, stop in bucket_ranges(v.size, bucket_size):
    scale = bucket_scale(v[start:stop], norm)
    scales.append(scale)
    if scale == 0:
      continue
    for i in range(start, stop):
      # An l2 norm rounded down may lie below the only element of a bucket.
      a = min(np.float32(abs(v[i]) / scale), np.float32(1))
      scaled = np.float32(a * s)
      level = int(math.floor(scaled))
      if uniforms[i] < scaled - np.float32(level):
        level += 1
      signed[i] = level if v[i] >= 0 else -level
  return np.array(scales, np.float32), signed


def decode(scales, signed, levels, bucket_size):
  """scale · sign · level/s, flat."""
  out = np.zeros(signed.size, np.float32)
  ranges = bucket_ranges(signed.size, bucket_size)
  for (start, stop), scale in zip(ranges, scales, strict=True):
    for i in range(start, stop):
      out[i] = scale * np.float32(signed[i]) / np.float32(levels)
  return out


def quantise(v, levels, bucket_size, norm, uniforms):
  """Q_s(v), eq. 4, bucket by bucket; the shape is that of v."""
  scales, signed = code(v, levels, bucket_size, norm, uniforms)
  return decode(scales, signed, levels, bucket_size).reshape(np.shape(v))


def levels_of_bits(bits):
  """s = 2^(b-1) - 1: one bit is the sign.

  >>> [levels_of_bits(b) for b in (2, 3, 4, 8)]
  [1, 3, 7, 127]
  """
  return 2 ** (bits - 1) - 1


class QSGD(leaves.Oracle):
  """Quantises each leaf, flat in C order; no memory."""

  def __init__(self, levels, *, bucket_size=512, norm='max', dense=()):
    super().__init__(dense=dense)
    self.levels = levels
    self.bucket_size = bucket_size
    self.norm = norm

  def step(self, gradients, uniforms):
    """Uniforms[w][leaf]: draws from [0, 1), shaped like the gradients."""
    gradients = self._begin(gradients)
    for w, tree in enumerate(gradients):
      for leaf in self._compressed_leaves(tree):
        self.delivered[w][leaf] += quantise(
          tree[leaf],
          self.levels,
          self.bucket_size,
          self.norm,
          uniforms[w][leaf],
        )
    return self._mean()


def variance(v, levels, bucket_size, norm):
  """E‖Q(v) - v‖², exactly: the sum of (scale/s)² · p · (1 - p)."""
  v = np.ravel(np.asarray(v, np.float64))
  total = 0.0
  for start, stop in bucket_ranges(v.size, bucket_size):
    scale = float(bucket_scale(v[start:stop], norm))
    for x in v[start:stop]:
      if scale > 0:
        scaled = min(abs(x) / scale, 1.0) * levels
        p = scaled - math.floor(scaled)
        total += (scale / levels) ** 2 * p * (1 - p)
  return total


def variance_bound(v, levels, bucket_size, norm):
  """Lemma 3.1 a bucket of d: min(d/s², √d/s)·‖v‖²; for max d·M²/(4s²)."""
  v = np.ravel(np.asarray(v, np.float64))
  total = 0.0
  for start, stop in bucket_ranges(v.size, bucket_size):
    d = stop - start
    scale = float(bucket_scale(v[start:stop], norm))
    if norm == 'l2':
      total += min(d / levels**2, math.sqrt(d) / levels) * scale**2
    else:
      total += d * scale**2 / (4 * levels**2)
  return total


def nonzeros_bound(n, levels):
  """Lemma 3.1 (iii): E‖Q‖₀ <= s(s + √n), 2-norm and one bucket only."""
  return levels * (levels + math.sqrt(n))


def expected_bits_bound(n, levels):
  """Theorem 3.2 with o(1) = 0: bits of the sparse code, 2-norm, one bucket."""
  s = levels
  nonzeros = nonzeros_bound(n, s)
  return (3 + 1.5 * math.log2(2 * (s * s + n) / nonzeros)) * nonzeros + 32


def omega_length(k):
  """Bits of Elias's recursive (omega) code of k >= 1.

  >>> [omega_length(k) for k in (1, 2, 3, 4, 7, 8, 15, 16, 100)]
  [1, 3, 3, 6, 6, 7, 7, 11, 13]
  """
  bits = 1
  while k > 1:
    bits += k.bit_length()
    k = k.bit_length() - 1
  return bits


def sparse_code_bits(signed):
  """Theorem 3.2's code: 32, then Elias(gap), sign, Elias(level) a nonzero."""
  bits = 32
  last = -1
  for i, level in enumerate(np.ravel(signed).tolist()):
    if level:
      bits += omega_length(i - last) + 1 + omega_length(abs(level))
      last = i
  return bits


def dense_code_bits(signed):
  """Corollary 3.3's code: 32, then Elias(level + 1), a sign where nonzero."""
  bits = 32
  for level in np.ravel(signed).tolist():
    bits += omega_length(abs(level) + 1) + (1 if level else 0)
  return bits


def gradient_descent(v):
  """QSGD for gradient descent: the few largest components, as one norm.

  The smallest index set with sum |v_i| >= ‖v‖₂ (largest magnitudes first, ties
  to the lower index); each is sent as ‖v‖₂·sign(v_i). At most ceil(√n) of them.
  float64.

  Returns:
    The sorted indices, and the dense vector that is sent.
  """
  v = np.asarray(v, np.float64)
  flat = np.ravel(v)
  norm = math.sqrt(sum(x * x for x in flat))
  chosen = []
  reached = 0.0
  for i in sorted(range(flat.size), key=lambda i: (-abs(flat[i]), i)):
    # A relative 1e-12 so that √n equal components do not need one more.
    if reached >= norm * (1 - 1e-12):
      break
    chosen.append(i)
    reached += abs(flat[i])
  sent = np.zeros(flat.size)
  for i in chosen:
    sent[i] = math.copysign(norm, flat[i])
  return sorted(chosen), sent.reshape(v.shape)
