"""Deep Speech 2 (Amodei et al. 2016, arXiv 1512.02595) in several sizes.

With 161 bins (windows of 20 ms at 16 kHz) and 28 characters and a blank:

  deepspeech_gru    117,461,168  DGC's LibriSpeech model: 7 GRU layers of 1200
                                 units (its table 4: 448.08 MB; 488.08 is
                                 printed). Of them 16,992 in vectors
  deepspeech_lstm    50,663,168  DGC's AN4 model: 5 LSTM layers of 800 units
  deepspeech_small      364,608  2 GRU layers of 96 units, one convolution; for
                                 spoken digits on a small machine (81 bins, at
                                 8 kHz; ten digits and the blank)

DGC names the layers and units only. That the directions are summed, that
recurrent layers have no biases and that 672 numbers a frame go into them
follows from its bytes; the rest is github.com/SeanNaren/deepspeech.pytorch of
that time. The LSTM's size is not printed: that it is like the GRU's network in
all else is ours. So is that the convolutions pad the ends of an utterance, so
that n frames become ceil(n / 2).
"""

from collections.abc import Sequence
from typing import NamedTuple

from experiments.models import frame_norm
from experiments.models import recurrent
from experiments.program import errors
from flax import linen as nn
import jax
import jax.numpy as jnp


class Convolution(NamedTuple):
  """Over a spectrogram.

  Attributes:
    channels: of the output.
    size: of the kernel, (frames, bins). Frames are padded, bins are not.
    strides: (frames, bins).
  """

  channels: int
  size: tuple[int, int]
  strides: tuple[int, int]


_FIRST = Convolution(32, (11, 41), (2, 2))
_TWO = (_FIRST, Convolution(32, (11, 21), (1, 2)))


class DeepSpeech(nn.Module):
  """Convolutions, recurrent layers in both directions, characters by CTC.

  What is behind an utterance's end changes nothing: the convolutions see zeros
  there, the backward direction begins at the utterance's own last frame, and
  the batch statistics are of real frames.

  Attributes:
    classes: characters, and the blank, which is 0.
    cell: of the recurrent layers, 'gru' or 'lstm'.
    layers: recurrent ones.
    units: of each direction; the two are summed.
    convolutions: before them.
    batch_norm: after each convolution, and before each recurrent layer but the
      first and the last dense one, over all real frames of the batch.
    batch_axis: see `layers.norm`.
  """

  classes: int
  cell: str = 'gru'
  layers: int = 7
  units: int = 1200
  convolutions: Sequence[Convolution] = _TWO
  batch_norm: bool = True
  batch_axis: str | None = None

  @nn.compact
  def __call__(
    self, features: jax.Array, frames: jax.Array, *, train: bool
  ) -> tuple[jax.Array, jax.Array]:
    """Logits for each second frame.

    Args:
      features: float32[batch, frames, bins], a spectrogram.
      frames: int32[batch], how many of them each utterance has.
      train: normalise by the batch; otherwise by the running averages.

    Returns:
      (logits float32[batch, fewer frames, classes], how many of these each
      utterance has). Logits of further frames mean nothing.

    Raises:
      ConfigError: so few bins that nothing is left of them.
    """

    def norm(x, mask):
      if not self.batch_norm:
        return x
      axis = self.batch_axis if train else None
      return frame_norm.FrameNorm(not train, axis)(x, mask)

    self._check_bins(features.shape[2])
    mask = _mask(features, frames)
    x = jnp.where(mask[..., None], features, 0)[..., None]
    for channels, size, strides in self.convolutions:
      padding = ((size[0] // 2,) * 2, (0, 0))
      x = nn.Conv(channels, size, strides, padding=padding)(x)
      frames = -(-frames // strides[0])
      mask = _mask(x, frames)
      x = jnp.clip(norm(x, mask), 0, 20)
      x = jnp.where(mask[..., None, None], x, 0)
    x = x.reshape(*x.shape[:2], -1)
    for number in range(self.layers):
      x = self._both_directions(norm(x, mask) if number else x, mask)
    init = _pytorch(self.units)
    logits = nn.Dense(self.classes, use_bias=False, kernel_init=init)
    return logits(norm(x, mask)), frames

  def _both_directions(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    def outputs(backwards):
      cell = recurrent.CELLS[self.cell](
        self.units, bias_sets=0, kernel_init=_pytorch(self.units)
      )
      return recurrent.Layer((cell,), backwards=backwards)(x, mask=mask)[0]

    return outputs(False) + outputs(True)

  def _check_bins(self, bins: int) -> None:
    needed = 1
    for convolution in reversed(self.convolutions):
      needed = (needed - 1) * convolution.strides[1] + convolution.size[1]
    if bins < needed:
      raise errors.ConfigError(
        f'features of this model need {needed} bins or more, got {bins}'
      )


def _mask(x: jax.Array, frames: jax.Array) -> jax.Array:
  """bool[batch, frames of x], which are there."""
  return jnp.arange(x.shape[1]) < frames[:, None]


def _pytorch(units: int):
  """PyTorch's initial values of recurrent layers."""
  return recurrent.uniform(units**-0.5)
