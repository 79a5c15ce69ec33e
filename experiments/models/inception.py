"""Inception with batch normalisation (Ioffe & Szegedy 2015, arXiv 1502.03167).

QSGD's table 1 has it with 11 M parameters, from CNTK's examples
(Examples/Image/Classification/GoogLeNet/BN-Inception/Python/BN_Inception.py),
whose widths these are: 11,285,224 parameters. As there, no convolution has a
bias; with a bias for each channel it would be the 11,295,240 of the copies for
other frameworks.
"""

from typing import NamedTuple

from experiments.models import layers
from flax import linen as nn
import jax
import jax.numpy as jnp


class Widths(NamedTuple):
  """Channels of a block's branches.

  Attributes:
    one: of the 1 x 1 convolution; 0: the block halves the image, and neither
      has this branch nor convolves what it has pooled.
    three: of a 1 x 1 convolution, and of the 3 x 3 one after it.
    double: of a 1 x 1 convolution, and of each of the two 3 x 3 ones after it.
    pooled: of the 1 x 1 convolution after the pooling.
    pool: 'average' or 'max'.
  """

  one: int
  three: tuple[int, int]
  double: tuple[int, int]
  pooled: int
  pool: str = 'average'


_BLOCKS = (
  Widths(64, (64, 64), (64, 96), 32),  # 3a: 28 x 28 pixels
  Widths(64, (64, 96), (64, 96), 64),
  Widths(0, (128, 160), (64, 96), 0, 'max'),
  Widths(224, (64, 96), (96, 128), 128),  # 4a: 14 x 14
  Widths(192, (96, 128), (96, 128), 128),
  Widths(160, (128, 160), (128, 160), 128),
  Widths(96, (128, 192), (160, 192), 128),
  Widths(0, (128, 192), (192, 256), 0, 'max'),
  Widths(352, (192, 320), (160, 224), 128),  # 5a: 7 x 7
  Widths(352, (192, 320), (192, 224), 128, 'max'),
)


def _pool(x: jax.Array, kind: str, stride: int) -> jax.Array:
  window, padding = (3, 3), ((1, 1), (1, 1))
  strides = (stride, stride)
  if kind == 'max':
    return nn.max_pool(x, window, strides, padding)
  return nn.avg_pool(x, window, strides, padding, count_include_pad=False)


class Inception(nn.Module):
  """Convolutions of several sizes side by side.

  Attributes:
    widths: of its branches.
    batch_axis: see `layers.norm`.
  """

  widths: Widths
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)

    def conv(x, channels, size=3, stride=1):
      return layers.conv_norm_relu(x, channels, size, stride, norm=norm)

    widths = self.widths
    stride = 1 if widths.one else 2
    first, last = widths.three
    branches = [conv(conv(x, first, 1), last, stride=stride)]
    first, last = widths.double
    branches += [conv(conv(conv(x, first, 1), last), last, stride=stride)]
    pooled = _pool(x, widths.pool, stride)
    if widths.one:
      branches += [conv(x, widths.one, 1), conv(pooled, widths.pooled, 1)]
    else:
      branches += [pooled]
    return jnp.concatenate(branches, axis=-1)


class BNInception(nn.Module):
  """Ten blocks, the third and the eighth of which halve the image.

  Batch normalisation is a worker's own (`layers.norm`).

  Attributes:
    classes: number of outputs.
    batch_axis: see `layers.norm`.
  """

  classes: int
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)
    x = layers.conv_norm_relu(images, 64, 7, 2, norm=norm)
    x = _pool(x, 'max', 2)
    x = layers.conv_norm_relu(x, 64, 1, norm=norm)
    x = layers.conv_norm_relu(x, 192, norm=norm)
    x = _pool(x, 'max', 2)
    for widths in _BLOCKS:
      x = Inception(widths, self.batch_axis)(x, train=train)
    x = x.mean(axis=(1, 2))
    return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x)
