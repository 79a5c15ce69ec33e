"""Residual networks for 32 x 32 images (He et al. 2016, section 4.2).

arXiv 1512.03385. Depth 6n + 2: n = 3 is ResNet-20 with 269,722 parameters,
n = 18 is ResNet-110 with 1,727,962.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp

_conv = functools.partial(
  nn.Conv,
  kernel_size=(3, 3),
  padding=1,  # both sides, also with stride 2, as in the paper's code
  use_bias=False,
  kernel_init=nn.initializers.he_normal(),
)


def _norm(train: bool, batch_axis: str | None):
  return functools.partial(
    nn.BatchNorm,
    use_running_average=not train,
    momentum=0.9,
    axis_name=batch_axis if train else None,
  )


class BasicBlock(nn.Module):
  """Two convolutions and an identity shortcut (the paper's option A).

  Where the block halves the image, the shortcut takes every other pixel and
  fills the new channels with zeros: no parameters.

  Attributes:
    channels: of the output.
    stride: 1, or 2 to halve the image.
    batch_axis: see `CifarResNet`.
  """

  channels: int
  stride: int = 1
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
    norm = _norm(train, self.batch_axis)
    y = _conv(self.channels, strides=self.stride)(x)
    y = nn.relu(norm()(y))
    y = norm()(_conv(self.channels)(y))
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
    batch_axis: name of a vmap over examples that share batch statistics (for
      per-example gradients); None normalises over the images given.
  """

  classes: int
  blocks: int = 3
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    x = _conv(16)(images)
    x = nn.relu(_norm(train, self.batch_axis)()(x))
    for stage, channels in enumerate((16, 32, 64)):
      for block in range(self.blocks):
        stride = 2 if stage and not block else 1
        x = BasicBlock(channels, stride, self.batch_axis)(x, train=train)
    x = x.mean(axis=(1, 2))
    return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x)
