"""Layers that several networks share.

The functions are called inside a module's `nn.compact` method and make layers
of that module: a network's parameters are named by their kind and number
(`Conv_0`, `BatchNorm_0`, ...), whoever made them.
"""

from collections.abc import Callable
import functools
from typing import Any

from flax import linen as nn
import jax

conv = functools.partial(
  nn.Conv,
  kernel_size=(3, 3),
  padding=1,  # both sides, also with stride 2, as in the papers' code
  use_bias=False,
  kernel_init=nn.initializers.he_normal(),
)


def norm(train: bool, batch_axis: str | None) -> Callable[..., nn.BatchNorm]:
  """Returns what makes a layer of batch normalisation.

  In training a worker normalises by the mean and the variance of its own batch,
  as the papers' workers do, and not by those of all workers together. Its
  running averages are its own, too; a test takes their mean.

  Args:
    train: normalise by the batch; otherwise by the running averages.
    batch_axis: name of a vmap over examples that share statistics (for
      per-example gradients); None normalises over the images given.
  """
  return functools.partial(
    nn.BatchNorm,
    use_running_average=not train,
    momentum=0.9,
    axis_name=batch_axis if train else None,
  )


def conv_norm_relu(
  x: jax.Array,
  channels: int,
  size: int = 3,
  stride: int = 1,
  *,
  norm: Callable[..., nn.BatchNorm],
  **options: Any,
) -> jax.Array:
  """A convolution that keeps the image's size, normalised, and a ReLU.

  Args:
    x: images.
    channels: of the output.
    size: of the kernel, pixels, odd.
    stride: pixels; 2 halves the image.
    norm: see `norm`.
    **options: of the convolution.
  """
  options |= {'strides': stride, 'padding': size // 2}
  x = conv(channels, kernel_size=(size, size), **options)(x)
  return nn.relu(norm()(x))


def dropout(x: jax.Array, rate: float, *, train: bool) -> jax.Array:
  """Sets a share of the activations to zero in training, and scales the rest.

  What is drawn comes from the key called 'dropout' of `model.apply`.

  Args:
    x: activations.
    rate: share that becomes zero.
    train: whether it happens at all.
  """
  return nn.Dropout(rate, deterministic=not train)(x)
