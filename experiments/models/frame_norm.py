"""Batch normalisation of sequences that end at different steps.

`flax.linen.BatchNorm` has a mask, but over an axis of examples it takes the
mean of the examples' means, and a short utterance would count as much as a long
one. Here each frame counts once.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp

_EPSILON = 1e-5
_MOMENTUM = 0.9  # of the running averages, as `layers.norm` has it


class FrameNorm(nn.Module):
  """Each channel by its mean and variance over all real frames of the batch.

  The mean is over batch, frames and whatever is between these and the channels:
  sequence-wise normalisation (Laurent et al. 2016, arXiv 1510.01378).

  Attributes:
    use_running_average: normalise by the running averages, not by the batch.
    axis_name: of a vmap over examples that share statistics; None: those of the
      examples given.
  """

  use_running_average: bool
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """Normalises.

    Args:
      x: float32[batch, frames, ..., channels].
      mask: bool[batch, frames], which are real.
    """
    shape = x.shape[-1:]
    scale = self.param('scale', nn.initializers.ones, shape)
    bias = self.param('bias', nn.initializers.zeros, shape)
    averages = (
      self.variable('batch_stats', 'mean', jnp.zeros, shape),
      self.variable('batch_stats', 'var', jnp.ones, shape),
    )
    mean, var = (average.value for average in averages)
    if not self.use_running_average:
      mean, var = self._statistics(x, mask)
      if not self.is_initializing():
        for average, new in zip(averages, (mean, var), strict=True):
          average.value = _MOMENTUM * average.value + (1 - _MOMENTUM) * new
    return (x - mean) * jax.lax.rsqrt(var + _EPSILON) * scale + bias

  def _statistics(
    self, x: jax.Array, mask: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    axes = range(x.ndim - 1)
    real = mask.reshape(*mask.shape, *[1] * (x.ndim - 2))

    def over_batch(sums):
      if self.axis_name is None or self.is_initializing():
        return sums
      return jax.lax.psum(sums, self.axis_name)

    def mean(values):
      return over_batch(jnp.sum(values, axes, where=real)) / count

    frames = over_batch(jnp.sum(mask, dtype=jnp.float32))
    count = jnp.maximum(frames, 1) * (x.size // (mask.size * x.shape[-1]))
    average = mean(x)
    return average, mean((x - average) ** 2)
