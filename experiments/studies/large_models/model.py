"""A decoder-only transformer, sharded over one axis of a mesh.

Only shapes are ever made of its parameters. Each layer has leaves of its own,
or, as programs for TPUs have it, all layers have them together in a scan.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import math
from typing import Any

from experiments.benchmarks.accelerators import programs
from experiments.program import errors
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import optax


@dataclasses.dataclass(frozen=True)
class Transformer:
  """Sizes of a transformer, and the functions that they define.

  Attributes:
    layers: how many.
    width: of the stream between them.
    heads: of the attention.
    vocabulary: how many tokens there are.
    context: how many of them are seen at once.
    shards: devices that hold the parameters together.
    scanned: whether leaves have a leading axis of layers, for `jax.lax.scan`.
  """

  layers: int
  width: int
  heads: int
  vocabulary: int
  context: int
  shards: int = 1
  scanned: bool = False

  def __post_init__(self):
    for name in ('heads', 'shards'):
      if self.width % getattr(self, name):
        raise errors.ConfigError(
          f'--{name} must divide --width={self.width}, got '
          f'{getattr(self, name)}'
        )

  def shapes(self) -> dict[str, Any]:
    """ShapeDtypeStructs of the parameters."""
    width = self.width

    def leaf(*shape):
      return jax.ShapeDtypeStruct(shape, jnp.float32)

    def norm():
      return {'scale': leaf(width), 'bias': leaf(width)}

    def dense(inputs, outputs):
      return {'kernel': leaf(inputs, outputs), 'bias': leaf(outputs)}

    def block():
      return {
        'norm_1': norm(),
        'qkv': dense(width, 3 * width),
        'out': dense(width, width),
        'norm_2': norm(),
        'up': dense(width, 4 * width),
        'down': dense(4 * width, width),
      }

    blocks: Any = [block() for _ in range(self.layers)]
    if self.scanned:
      blocks = jax.tree.map(lambda x: leaf(self.layers, *x.shape), block())
    return {
      'tokens': leaf(self.vocabulary, width),
      'places': leaf(self.context, width),
      'blocks': blocks,
      'norm': norm(),
    }

  @property
  def parameters(self) -> int:
    """How many numbers they are."""
    return sum(math.prod(x.shape) for x in jax.tree.leaves(self.shapes()))

  def specs(self) -> dict[str, Any]:
    """How the leaves are sharded: norms and biases are whole."""
    return jax.tree.map(
      lambda x: programs.sharded(x.shape, self.shards), self.shapes()
    )

  def value_and_grad(self) -> Callable[[Any, jax.Array], tuple[Any, Any]]:
    """The loss of a replica's tokens, and its gradient.

    To be called where `programs.INSIDE` is an automatic axis. The collectives
    of FSDP are written out: a matrix is gathered where it is used, and its
    gradient is reduced and scattered. What XLA would arrange by itself depends
    on the backend, and the one for CPUs reduces gradients without scattering
    them.

    Returns:
      A function of parameters and int32 tokens [sequences, context + 1].
    """
    specs = self.specs()

    def on_device(params, tokens):
      return jax.value_and_grad(
        lambda p: jax.lax.pmean(self.loss(p, specs, tokens), programs.INSIDE)
      )(params)

    return jax.shard_map(
      on_device,
      in_specs=(specs, P(programs.INSIDE)),
      out_specs=(P(), specs),
      axis_names={programs.INSIDE},
    )

  def loss(self, params: Any, specs: Any, tokens: jax.Array) -> jax.Array:
    """The mean loss of tokens, of a device's shards or of whole leaves."""
    embedding = _gathered(params['tokens'], specs['tokens'])
    x = embedding[tokens[:, :-1]] + _gathered(params['places'], specs['places'])
    if self.scanned:
      # A layer's leaves are sharded along a dimension of their own.
      inside = jax.tree.map(lambda spec: P(*spec[1:]), specs['blocks'])

      def layer(x, p):
        return self._block(_gathered(p, inside), x), None

      x, _ = jax.lax.scan(jax.checkpoint(layer), x, params['blocks'])
    else:
      for block, block_specs in zip(
        params['blocks'], specs['blocks'], strict=True
      ):
        x = jax.checkpoint(
          lambda p, x, s=block_specs: self._block(_gathered(p, s), x)
        )(block, x)
    logits = _norm(params['norm'], x) @ embedding.T
    return jnp.mean(
      optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    )

  def _block(self, p, x):
    heads = (*x.shape[:2], 3 * self.heads, self.width // self.heads)
    qkv = _dense(p['qkv'], _norm(p['norm_1'], x)).reshape(heads)
    q, k, v = jnp.split(qkv, 3, axis=2)
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + _dense(p['out'], attended.reshape(x.shape))
    hidden = jax.nn.gelu(_dense(p['up'], _norm(p['norm_2'], x)))
    return x + _dense(p['down'], hidden)


def _gathered(tree, specs):
  """Whole leaves of a device's shards."""

  def gather(x, spec):
    if programs.INSIDE not in spec:
      return x
    return jax.lax.all_gather(
      x, programs.INSIDE, axis=spec.index(programs.INSIDE), tiled=True
    )

  return jax.tree.map(gather, tree, specs)


def _norm(p, x):
  return jax.nn.standardize(x, epsilon=1e-5) * p['scale'] + p['bias']


def _dense(p, x):
  return x @ p['kernel'] + p['bias']
