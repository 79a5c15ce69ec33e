"""Recurrent cells, and layers of them.

Flax's own cells have a kernel for each gate, one set of biases, no layer
normalisation, and multiply the inputs step by step. The papers' frameworks have
one kernel for all gates: a tensor of another size is another message. So these
are ours. All gates of all steps get their inputs in one product, before the
loop; in the loop is one product a cell.

A cell's state is a tuple of float32[batch, features]: its output first, then
what else it remembers.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, ClassVar

from flax import linen as nn
import jax
import jax.numpy as jnp

State = tuple[jax.Array, ...]


# Takes a step after the other, with the same parameters.
scan = functools.partial(
  nn.scan, variable_broadcast='params', split_rngs={'params': False}, out_axes=1
)


def uniform(limit: float) -> Callable[..., jax.Array]:
  """Initial values drawn from [-limit, limit)."""

  def init(key, shape, dtype=jnp.float32):
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init


class Cell(nn.Module):
  """What all cells share: the products that their gates are made of.

  A cell is called with the state before a step and its `inputs`.

  Attributes:
    features: of the output.
    bias_sets: how many biases each gate has. A second one adds nothing to what
      the cell can do, but cuDNN and so PyTorch have it.
    layer_norm: both products are normalised over all gates together, with a
      scale each, before the biases are added (Marian's way).
    kernel_init: of the kernels; biases begin as zeros.
  """

  features: int
  bias_sets: int = 1
  layer_norm: bool = False
  kernel_init: Callable[..., jax.Array] = nn.initializers.glorot_uniform()

  gates: ClassVar[int]

  def setup(self):
    width = self.gates * self.features
    self.input = self._product(width)
    self.recurrent = self._product(width)
    self.biases = [
      self.param(f'bias_{number}', nn.initializers.zeros, (width,))
      for number in range(self.bias_sets)
    ]
    if self.layer_norm:
      self.input_norm = nn.LayerNorm(use_bias=False)
      self.recurrent_norm = nn.LayerNorm(use_bias=False)

  @property
  def widths(self) -> Sequence[int]:
    """Of the parts of the state."""
    return self.features, self.features

  def _product(self, width: int) -> nn.Dense:
    return nn.Dense(width, use_bias=False, kernel_init=self.kernel_init)

  def zero(self, x: jax.Array) -> State:
    """The state before the first step.

    Args:
      x: anything with a leading axis of examples. Under `shard_map` zeros that
        are made like it may differ between workers later on.
    """
    shapes = ((len(x), width) for width in self.widths)
    return tuple(jnp.zeros_like(x, jnp.float32, shape=s) for s in shapes)

  def inputs(self, x: jax.Array | None) -> jax.Array:
    """What the gates get apart from the state.

    Args:
      x: [..., inputs], of one step or of many; None: the gates get their
        biases only, as in a deep transition's later cells.

    Returns:
      [..., gates * features], or without x [gates * features].
    """
    total = sum(self.biases, jnp.zeros(self.gates * self.features))
    if x is None:
      return total
    product = self.input(x)
    return (self.input_norm(product) if self.layer_norm else product) + total

  def _from_output(self, output: jax.Array) -> jax.Array:
    product = self.recurrent(output)
    return self.recurrent_norm(product) if self.layer_norm else product


class LSTM(Cell):
  """Long short-term memory; the state is (output, memory).

  i, f, g, o = W x + U h + b
  c <- sigmoid(f) c + sigmoid(i) tanh(g)
  h <- sigmoid(o) tanh(c)
  """

  gates = 4

  def __call__(self, state: State, inputs: jax.Array) -> State:
    output, memory = state
    gates = inputs + self._from_output(output)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    memory = nn.sigmoid(f) * memory + nn.sigmoid(i) * jnp.tanh(g)
    return nn.sigmoid(o) * jnp.tanh(memory), memory


class GRU(Cell):
  """Gated recurrent unit, as cuDNN and Marian have it; the state is (output,).

  r = sigmoid(W_r x + U_r h + b_r);  z likewise
  n = tanh(W_n x + r (U_n h) + b_n)
  h <- (1 - z) n + z h
  """

  gates = 3

  @property
  def widths(self) -> Sequence[int]:
    return (self.features,)

  def __call__(self, state: State, inputs: jax.Array) -> State:
    (output,) = state
    r, z, n = jnp.split(inputs, 3, axis=-1)
    own_r, own_z, own_n = jnp.split(self._from_output(output), 3, axis=-1)
    z = nn.sigmoid(z + own_z)
    n = jnp.tanh(n + nn.sigmoid(r + own_r) * own_n)
    return ((1 - z) * n + z * output,)


CELLS: dict[str, type[Cell]] = {'gru': GRU, 'lstm': LSTM}


class Layer(nn.Module):
  """Cells over a sequence.

  Attributes:
    cells: which the state passes in each step, one after another; the first
      gets the step's input. With more than one it is a deep transition.
    backwards: begins at the end of the sequence; where there is a mask, at each
      example's own end.
  """

  cells: Sequence[Cell]
  backwards: bool = False

  def __call__(
    self,
    x: jax.Array,
    state: State | None = None,
    mask: jax.Array | None = None,
  ) -> tuple[jax.Array, State]:
    """Runs over all steps.

    Args:
      x: float32[batch, steps, inputs].
      state: before the first step; None: zeros.
      mask: bool[batch, steps], which steps are there. The others leave the
        state as it is, and their outputs are zero.

    Returns:
      (outputs float32[batch, steps, features], state after the last step).
    """
    first, *_ = self.cells
    if state is None:
      state = first.zero(x)
    steps = scan(_step, in_axes=1, reverse=self.backwards)
    state, outputs = steps(self, state, (first.inputs(x), mask))
    return outputs, state


def _step(layer: Layer, state: State, step: Any) -> tuple[State, jax.Array]:
  inputs, there = step
  first, *others = layer.cells
  new = first(state, inputs)
  for cell in others:
    new = cell(new, cell.inputs(None))
  if there is None:
    return new, new[0]
  there = there[:, None]
  kept = tuple(jnp.where(there, n, o) for n, o in zip(new, state, strict=True))
  return kept, jnp.where(there, new[0], 0)
