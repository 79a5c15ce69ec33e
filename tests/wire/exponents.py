"""The four-bit code of entries that belong to segments."""

from gradsparse.wire import exponent
import jax
import jax.numpy as jnp


def round_values(
  values: jax.Array,
  valid: jax.Array,
  segments: jax.Array,
  num_segments: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Rounds values to signed powers of two that the code can express.

  The code has no zero: what is too small beside its segment's largest value
  is not kept, and neither are zeros and denormal numbers. An infinity or NaN
  comes out as an infinity, so that it is seen on the other side.

  Args:
    values: float32[k].
    valid: bool[k], which entries take part.
    segments: int32[k], the segment of each entry; may be out of range where
      not valid.
    num_segments: number of segments.

  Returns:
    rounded: float32[k], 0 where not kept.
    kept: bool[k], False where not valid or not expressible.
    top: int32[num_segments], the biased exponent e_M + 127 of each segment; 0
      for one without values.
  """
  top = (
    jnp.zeros(num_segments, jnp.int32)
    .at[segments]
    .max(jnp.where(valid, exponent.floors(values), 0), mode='drop')
  )
  rounded, kept = exponent.round_below(values, top_of(top, segments))
  kept &= valid
  return jnp.where(kept, rounded, 0.0), kept, top


def top_of(top: jax.Array, segments: jax.Array) -> jax.Array:
  """`limit` of each entry, of its segment's; 0 where that is out of range."""
  return top.at[segments].get(mode='fill', fill_value=0)
