"""VGG (Simonyan & Zisserman 2015, arXiv 1409.1556) and what papers made of it.

  vgg16     CIFAR-10   14,728,266  gTop-k, table V; its code, models/vgg.py
  vgg_like  CIFAR-10   14,987,200  the variance paper, appendix D; Chainer's
                                   examples/cifar/models/VGG.py
  vgg19     ImageNet  143,667,240  QSGD, table 1: 143 M; torchvision's `vgg19`

In the first two each convolution is normalised by a worker's own batch
(`layers.norm`); the third is the network of 2015, without normalisation.
"""

from collections.abc import Sequence

from experiments.models import layers
from flax import linen as nn
import jax

# (channels, convolutions) of each stage; a stage ends by halving the image.
Stages = Sequence[tuple[int, int]]
_SIXTEEN = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_NINETEEN = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))


def _features(x: jax.Array, stages: Stages, layer) -> jax.Array:
  """The convolutional part, flat: a vector an image.

  Args:
    x: images.
    stages: of the network.
    layer: `(x, channels, stage, is_last) -> x`, a convolution with all that
      comes with it.
  """
  for stage, (channels, count) in enumerate(stages):
    for number in range(count):
      x = layer(x, channels, stage, number == count - 1)
    x = nn.max_pool(x, (2, 2), strides=(2, 2))
  return x.reshape(x.shape[0], -1)


class CifarVGG(nn.Module):
  """VGG with normalised convolutions and one dense layer.

  The convolutions have biases, which do nothing before a normalisation; they
  are counted because the paper's code has them. (Its text speaks of three
  dense layers, its code has this one.)

  References:
    Shi et al., arXiv 1901.04359, table V; github.com/hclhkbu/gtopkssgd.

  Attributes:
    classes: number of outputs.
    stages: channels and convolutions of each.
    batch_axis: see `layers.norm`.
  """

  classes: int
  stages: Stages = _SIXTEEN
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)

    def layer(x, channels, *_):  # all alike
      return layers.conv_norm_relu(x, channels, norm=norm, use_bias=True)

    return nn.Dense(self.classes)(_features(images, self.stages, layer))


class VGGLike(nn.Module):
  """The variance paper's VGG-like network, with dropout.

  After a convolution that is not the last of its stage, a share of the
  activations is dropped: 0.3 in the first stage, 0.4 in the others; 0.5 before
  each of the two dense layers. No layer has a bias, as in Chainer's example,
  which the paper names as its code.

  References:
    Tsuzuku et al., arXiv 1802.06058, appendix D, table 3.

  Attributes:
    classes: number of outputs.
    stages: channels and convolutions of each.
    width: of the first dense layer.
    batch_axis: see `layers.norm`.
  """

  classes: int
  stages: Stages = _SIXTEEN
  width: int = 512
  batch_axis: str | None = None

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    norm = layers.norm(train, self.batch_axis)

    def layer(x, channels, stage, is_last):
      x = layers.conv_norm_relu(x, channels, norm=norm)
      if is_last:
        return x
      return layers.dropout(x, 0.4 if stage else 0.3, train=train)

    x = _features(images, self.stages, layer)
    x = layers.dropout(x, 0.5, train=train)
    x = nn.relu(norm()(nn.Dense(self.width, use_bias=False)(x)))
    x = layers.dropout(x, 0.5, train=train)
    return nn.Dense(self.classes, use_bias=False)(x)


class ImageNetVGG(nn.Module):
  """VGG as it was published: biases, dropout, two wide dense layers.

  Attributes:
    classes: number of outputs.
    stages: channels and convolutions of each.
  """

  classes: int
  stages: Stages = _NINETEEN

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    def layer(x, channels, *_):  # all alike
      return nn.relu(layers.conv(channels, use_bias=True)(x))

    x = _features(images, self.stages, layer)
    for _ in range(2):
      x = nn.relu(nn.Dense(4096, kernel_init=nn.initializers.normal(0.01))(x))
      x = layers.dropout(x, 0.5, train=train)
    return nn.Dense(self.classes, kernel_init=nn.initializers.normal(0.01))(x)
