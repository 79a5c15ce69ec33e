"""AlexNet (Krizhevsky et al. 2012), in two halves or in one.

With 1000 classes it has these parameters:

  alexnet            60,965,224  Caffe's bvlc_alexnet; DGC's table 3: 232.56 MB
  alexnet_ungrouped  62,378,344  the same without groups; QSGD, table 1: 62 M
"""

from experiments.models import layers
from flax import linen as nn
import jax

_NEIGHBOURS = 5  # channels
_ALPHA, _BETA = 1e-4, 0.75


def _response_norm(x: jax.Array) -> jax.Array:
  """Each channel, smaller where its neighbours are large (section 3.3).

  b_i = a_i / (1 + alpha / n * sum of a_j^2)^beta over the n channels around i,
  with Caffe's constants.
  """
  sums = jax.lax.reduce_window(
    x * x,
    0.0,  # known when it is traced, or JAX could not differentiate the sum
    jax.lax.add,
    window_dimensions=(1, 1, 1, _NEIGHBOURS),
    window_strides=(1, 1, 1, 1),
    padding='SAME',
  )
  return x * (1 + _ALPHA / _NEIGHBOURS * sums) ** -_BETA


class AlexNet(nn.Module):
  """Five convolutions and three dense layers.

  Initial values are Caffe's: normal weights of standard deviation 0.01 (0.005
  in the wide dense layers), biases of 0.1 in the layers that had them in 2012.
  The first convolution pads the image by two pixels, so that crops of 224
  pixels have the 6 x 6 last images of Caffe's 227 without padding. There is no
  batch normalisation.

  References:
    Krizhevsky, Sutskever, Hinton: ImageNet classification with deep
    convolutional neural networks, NIPS 2012.
    github.com/BVLC/caffe, models/bvlc_alexnet/train_val.prototxt.

  Attributes:
    classes: number of outputs.
    groups: into which the second, fourth and fifth convolution are divided.
  """

  classes: int
  groups: int = 2

  @nn.compact
  def __call__(self, images: jax.Array, *, train: bool) -> jax.Array:
    def conv(x, channels, size=3, groups=1, bias=0.0, **options):
      layer = nn.Conv(
        channels,
        (size, size),
        feature_group_count=groups,
        kernel_init=nn.initializers.normal(0.01),
        bias_init=nn.initializers.constant(bias),
        **{'padding': size // 2, **options},
      )
      return nn.relu(layer(x))

    def pool(x):
      return nn.max_pool(x, (3, 3), strides=(2, 2))

    def dense(x, features, deviation, bias):
      kernel = nn.initializers.normal(deviation)
      biases = nn.initializers.constant(bias)
      return nn.Dense(features, kernel_init=kernel, bias_init=biases)(x)

    x = conv(images, 96, 11, strides=4, padding=2)
    x = pool(_response_norm(x))
    x = conv(x, 256, 5, self.groups, 0.1)
    x = pool(_response_norm(x))
    x = conv(x, 384)
    x = conv(x, 384, 3, self.groups, 0.1)
    x = pool(conv(x, 256, 3, self.groups, 0.1))
    x = x.reshape(x.shape[0], -1)
    for _ in range(2):
      x = layers.dropout(nn.relu(dense(x, 4096, 0.005, 0.1)), 0.5, train=train)
    return dense(x, self.classes, 0.01, 0.0)
