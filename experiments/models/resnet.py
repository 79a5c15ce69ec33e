"""Residual networks (He et al. 2016, arXiv 1512.03385), small and large.

For 32 x 32 images (section 4.2), depth 6n + 2:

  resnet8     n = 1      75,290 parameters   for quick rows; in no paper
  resnet20    n = 3     269,722              He et al., table 6: 0.27 M
  resnet110   n = 18  1,727,962              1.7 M

For ImageNet (table 1), blocks a stage:

  resnet50    3, 4, 6, 3     25,557,032      gradsparse's papers: 25 to 26 M
  resnet152   3, 8, 36, 3    60,192,808      QSGD, table 1: 60 M

The last two counts are those of torchvision's `resnet50` and `resnet152`.
Batch normalisation is a worker's own (`layers.norm`).
"""

from collections.abc import Sequence

from experiments.models import layers
from flax import linen as nn
import jax
import jax.numpy as jnp


class BasicBlock(nn.Module):
  """Two convolutions and an identity shortcut (the paper's option A).

  Where the block halves the image, the shortcut takes every other pixel and
  fills the new channels with zeros: no parameters.

  Attributes:
    channels: of the output.
    stride: 1, or 2 to halve the image.
    batch_axis: see `layers.norm`.
  """

  channels: int
  stride: int = 1
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)
    y = layers.conv_norm_relu(x, self.channels, stride=self.stride, norm=norm)
    y = norm()(layers.conv(self.channels)(y))
    if self.stride > 1:
      new = self.channels - x.shape[-1]
      x = x[:, :: self.stride, :: self.stride]
      x = jnp.pad(x, ((0, 0), (0, 0), (0, 0), (new // 2, new - new // 2)))
    return nn.relu(x + y)


class CifarResNet(nn.Module):
  """Three stages of residual blocks with 16, 32 and 64 channels.

  Attributes:
    classes: number of outputs.
    blocks: residual blocks a stage, the paper's n.
    batch_axis: see `layers.norm`.
  """

  classes: int
  blocks: int = 3
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)
    x = layers.conv_norm_relu(images, 16, norm=norm)
    for stage, channels in enumerate((16, 32, 64)):
      for block in range(self.blocks):
        stride = 2 if stage and not block else 1
        x = BasicBlock(channels, stride, self.batch_axis)(x, train=train)
    x = x.mean(axis=(1, 2))
    return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x)


class Bottleneck(nn.Module):
  """1 x 1, 3 x 3 and 1 x 1 convolutions around fewer channels.

  Where the shape changes, the shortcut is a 1 x 1 convolution (option B). As
  Goyal et al. 2017 (arXiv 1706.02677, section 5.1) train it: the 3 x 3
  convolution has the stride, and the block begins as the identity, since its
  last normalisation begins with scales of zero.

  Attributes:
    channels: inside; the output has four times as many.
    stride: 1, or 2 to halve the image.
    batch_axis: see `layers.norm`.
  """

  channels: int
  stride: int = 1
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)
    outside = 4 * self.channels
    y = layers.conv_norm_relu(x, self.channels, 1, norm=norm)
    y = layers.conv_norm_relu(y, self.channels, 3, self.stride, norm=norm)
    y = layers.conv(outside, kernel_size=(1, 1), padding=0)(y)
    y = norm(scale_init=nn.initializers.zeros)(y)
    if x.shape != y.shape:
      x = layers.conv(
        outside, kernel_size=(1, 1), padding=0, strides=self.stride
      )(x)
      x = norm()(x)
    return nn.relu(x + y)


class ResNet(nn.Module):
  """Four stages of bottlenecks with 64 to 512 channels inside.

  Attributes:
    classes: number of outputs.
    blocks: of each stage.
    batch_axis: see `layers.norm`.
  """

  classes: int
  blocks: Sequence[int] = (3, 4, 6, 3)
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)
    x = layers.conv_norm_relu(images, 64, 7, 2, norm=norm)
    x = nn.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
    for stage, count in enumerate(self.blocks):
      for block in range(count):
        stride = 2 if stage and not block else 1
        x = Bottleneck(64 << stage, stride, self.batch_axis)(x, train=train)
    x = x.mean(axis=(1, 2))
    return nn.Dense(self.classes, kernel_init=nn.initializers.normal(0.01))(x)
