"""Second moments of per-example gradients, for the variance criterion.

With g_z the gradient of example z and B examples in the batch, the
variance-based schemes need, elementwise,

  mean gradient    sum_z g_z / B
  second moment    sum_z (g_z / B)^2      (not the mean of squares: B times it)

Four functions compute them:

  value_and_grad_moments      exact, in one backward pass (`per_example`); in
                              chunks of the batch if memory is scarce
  batch_value_and_grad_moments  exact, for any loss of the batch, but slow: it
                              differentiates a copy of the parameters for each
                              example
  moments_from_microbatches   unbiased estimate from the means of M parts
  dense_with_moment           exact for a dense layer, with one more matrix
                              product and no per-example tensors

References:
  Tsuzuku et al., arXiv 1802.06058, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsparse import arguments
from gradsparse import losses
from gradsparse.collectives import mesh_axes
from gradsparse.moments import per_example
from gradsparse.transform import inputs
import jax
import jax.numpy as jnp


def _chunk(microbatch: int | None, size: int) -> int:
  chunk = size if microbatch is None else microbatch
  if size % chunk:
    raise ValueError(
      f'microbatch must divide the batch of {size} examples, got {microbatch}'
    )
  return chunk


def _checked(microbatch: Any) -> int | None:
  if microbatch is None:
    return None
  return arguments.whole_number('microbatch', microbatch, 1)


def _split(batch: Any, chunk: int) -> Any:
  return jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), batch)


def _zeros(params: Any) -> Any:
  return jax.tree.map(lambda p: jnp.zeros_like(p, jnp.float32), params)


def value_and_grad_moments(
  loss_fn: Callable[..., Any],
  *,
  microbatch: int | None = None,
  has_aux: bool = False,
  axis_name: str | None = None,
) -> Callable[[Any, Any], tuple[Any, Any, Any]]:
  """Like `jax.value_and_grad`, but also returns the second moment.

  One backward pass of the batch is enough for a parameter that has one use in
  the loss: in a dense layer, a convolution or an embedding, also in a recurrent
  network (`jax.lax.scan`). A matrix may have several lookups and products (a
  tied embedding). Other parameters are copied for each example. That is exact
  too, and cheap for biases and scales; a warning names larger ones.

  Args:
    loss_fn: (params, example) -> loss of one example (and aux).
    microbatch: examples differentiated at a time; must divide the batch. None
      is the whole batch.
    has_aux: loss_fn returns (loss, aux); aux of all examples is stacked.
    axis_name: name of the axis of examples, over which losses may have
      collectives: with Flax, BatchNorm(axis_name=...). An example's
      contribution is then the derivative of the batch's mean loss with respect
      to its own use of the parameters, as in `batch_value_and_grad_moments`.
      microbatch must be None.

  Returns:
    (params, batch) -> (value, grads, second_moment): mean loss (with has_aux:
    (mean loss, aux)), mean gradient in the parameters' dtype, and
    sum_z (g_z / B)^2 in float32. Batch arrays have the examples first.

  Raises:
    TypeError: an argument is of the wrong kind; when called: a parameter is not
      floating-point, or the loss is not a scalar.
    ValueError: microbatch is not positive, or is given with axis_name; when
      called: it does not divide the batch, or the batch has no examples.

  Example:
    >>> import jax.numpy as jnp
    >>> def loss(w, x):
    ...   return w * x
    >>> value, grad, moment = value_and_grad_moments(loss)(
    ...   jnp.float32(2.0), jnp.array([1.0, 3.0]))
    >>> print(value, grad, moment)
    4.0 2.0 2.5
  """
  microbatch = _checked(microbatch)
  has_aux = arguments.flag('has_aux', has_aux)
  loss_fn = losses.checked(loss_fn, has_aux=has_aux)
  if axis_name is not None:
    arguments.instance('axis_name', axis_name, str)
  if axis_name is not None and microbatch is not None:
    raise ValueError(
      'microbatch must be None with axis_name, whose examples share '
      f'statistics, got {microbatch}'
    )

  def run(params, batch):
    inputs.check_floating(params, 'params')
    size = losses.examples('batch', batch)
    # In shard_map JAX sums the gradients of values typed equal on all devices.
    zero = mesh_axes.varying_zero((params, batch))
    own = jax.tree.map(lambda p: p + zero.astype(p.dtype), params)
    chunk = _chunk(microbatch, size)
    parts = _split(batch, chunk)
    first = jax.tree.map(lambda x: x[0], parts)
    program = per_example.Program(
      loss_fn, own, first, axis_name=axis_name, has_aux=has_aux
    )

    def add(carry, part):
      loss, aux, *sums = program.sums(own, part, size)
      return jax.tree.map(jnp.add, carry, (loss, *sums)), aux

    # The first chunk is outside the scan, whose carry must keep its type:
    # inside shard_map, sums are typed varying, but a constant zero is not.
    loss, aux, *sums = program.sums(own, first, size)
    if chunk < size:
      rest = jax.tree.map(lambda x: x[1:], parts)
      (loss, *sums), others = jax.lax.scan(add, (loss, *sums), rest)
      aux = jax.tree.map(
        lambda h, t: jnp.concatenate([h[None], t]).reshape(-1, *h.shape[1:]),
        aux,
        others,
      )
    grads, squares = sums
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)
    return ((loss, aux) if has_aux else loss), grads, squares

  return run


def batch_value_and_grad_moments(
  loss_fn: Callable[[Any, Any], Any],
  *,
  microbatch: int | None = None,
  has_aux: bool = False,
) -> Callable[[Any, Any], tuple[Any, Any, Any]]:
  """`value_and_grad_moments` for losses with batch statistics (batch norm).

  Every example sees the shared batch statistics. Its contribution is the
  derivative of the batch's mean loss with respect to its own copy of the
  parameters; contributions sum to the batch gradient. A microbatch limits the
  memory of the per-example gradients only: each one runs the forward pass of
  the whole batch. If the loss can be written for one example,
  `value_and_grad_moments(axis_name=...)` gives the same numbers many times
  faster.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> def loss(w, batch):  # an element of w for each example
  ...   return jnp.mean(w * batch)
  >>> moments = jax.jit(gs.batch_value_and_grad_moments(loss))
  >>> print(*moments(2.0, jnp.array([1.0, 3.0])))
  4.0 2.0 2.5

  Args:
    loss_fn: (params_per_example, batch) -> mean loss of the batch (and aux),
      where each parameter has a leading axis of examples. With Flax: jax.vmap
      of the model over both, and BatchNorm with that vmap's axis_name.
    microbatch: examples differentiated at a time; must divide the batch.
    has_aux: loss_fn returns (loss, aux).

  Returns:
    (params, batch) -> (value, grads, second_moment), where params have no axis
    of examples; with has_aux the value is (loss, aux).

  Raises:
    TypeError: an argument is of the wrong kind; when called: a parameter is not
      floating-point, or the loss is not a scalar.
    ValueError: microbatch is not positive; when called: it does not divide the
      batch, or the batch has no examples.
  """
  microbatch = _checked(microbatch)
  has_aux = arguments.flag('has_aux', has_aux)
  loss_fn = losses.checked(loss_fn, has_aux=has_aux)

  def run(params, batch):
    inputs.check_floating(params, 'params')
    size = losses.examples('batch', batch)
    chunk = _chunk(microbatch, size)
    copies = jax.tree.map(
      lambda p: jnp.broadcast_to(p, (size, *p.shape)), params
    )

    def loss_of(own, begin):
      whole = jax.tree.map(
        lambda c, o: jax.lax.dynamic_update_slice_in_dim(c, o, begin, 0),
        copies,
        own,
      )
      return loss_fn(whole, batch)

    own = jax.tree.map(lambda c: c[:chunk], copies)
    differentiated = jax.value_and_grad(loss_of, has_aux=has_aux)

    def add(carry, begin):
      grads, squares = carry
      value, g = differentiated(own, begin)
      g = jax.tree.map(lambda x: x.astype(jnp.float32), g)
      grads = jax.tree.map(lambda a, x: a + jnp.sum(x, 0), grads, g)
      squares = jax.tree.map(lambda a, x: a + jnp.sum(x * x, 0), squares, g)
      return (grads, squares), value

    # The first chunk is outside the scan, so that the carry keeps its type.
    start, value = add((_zeros(params), _zeros(params)), 0)
    begins = jnp.arange(chunk, size, chunk)
    (grads, squares), _ = jax.lax.scan(add, start, begins)
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)
    return value, grads, squares

  return run


def moments_from_microbatches(
  loss_fn: Callable[[Any, Any], jax.Array], num_microbatches: int
) -> Callable[[Any, Any], tuple[jax.Array, Any, Any]]:
  """Estimates the second moment from the gradients of M parts of the batch.

  With r the batch mean and s^2 = (B / M) / (M - 1) sum_j (g_j - r)^2 the
  unbiased variance of a single example's gradient, the estimate
  (r^2 + s^2 (B - 1) / B) / B is unbiased. The plain sum_j (g_j / M)^2 is not.

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> def loss(w, batch):
  ...   return jnp.mean(w * batch)
  >>> moments = jax.jit(gs.moments_from_microbatches(loss, 2))
  >>> print(*moments(2.0, jnp.array([1.0, 3.0])))
  4.0 2.0 2.5

  Args:
    loss_fn: (params, batch) -> mean loss.
    num_microbatches: M, at least 2; must divide the batch.

  Returns:
    (params, batch) -> (value, grads, second_moment estimate). The cost is about
    that of M gradients of B / M examples.

  Raises:
    TypeError: an argument is of the wrong kind; when called: a parameter is not
      floating-point, or the loss is not a scalar.
    ValueError: num_microbatches is less than 2; when called: it does not divide
      the batch, or the batch has no examples.
  """
  loss_fn = losses.checked(loss_fn)
  num_microbatches = arguments.whole_number(
    'num_microbatches', num_microbatches, 2
  )

  def run(params, batch):
    inputs.check_floating(params, 'params')
    size = losses.examples('batch', batch)
    if size % num_microbatches:
      raise ValueError(
        f'num_microbatches must divide the batch of {size} examples, got '
        f'{num_microbatches}'
      )
    each = size // num_microbatches
    values, grads = jax.lax.map(
      lambda part: jax.value_and_grad(loss_fn)(params, part),
      _split(batch, each),
    )
    mean = jax.tree.map(lambda g: jnp.mean(g.astype(jnp.float32), 0), grads)

    def moment(g, r):
      spread = jnp.sum(jnp.square(g.astype(jnp.float32) - r), 0)
      variance = each / (num_microbatches - 1) * spread
      return (r * r + variance * (size - 1) / size) / size

    moments = jax.tree.map(moment, grads, mean)
    mean = jax.tree.map(lambda g, p: g.astype(p.dtype), mean, params)
    return jnp.mean(values), mean, moments

  return run


def dense_with_moment(
  x: jax.Array, kernel: jax.Array, tap: jax.Array
) -> jax.Array:
  """x @ kernel, whose gradient with respect to `tap` is a second moment.

  The gradient of a dense layer is A^T D, with inputs A and output cotangents D,
  one row for each example. The sum of squares needs no per-example tensors:
  sum_z (a_z d_z^T)^2 = (A * A)^T (D * D). Differentiate the batch's mean loss
  with respect to kernel and tap: the latter is sum_z (g_z / B)^2.

  This is exact only if each example is one row of x (no time axis).

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> x, kernel = jnp.array([[1.0], [3.0]]), jnp.array([[2.0]])
  >>> def loss(kernel, tap):
  ...   return jnp.mean(gs.dense_with_moment(x, kernel, tap))
  >>> print(*jax.jit(jax.grad(loss, (0, 1)))(kernel, jnp.zeros((1, 1))))
  [[2.]] [[2.5]]

  Args:
    x: (B, m), one row for each example.
    kernel: (m, n).
    tap: zeros like kernel; its value does not matter.

  Returns:
    (B, n).

  Raises:
    TypeError: an argument is not floating-point.
    ValueError: an argument is not a matrix, or the shapes do not fit.
  """
  for name, value in (('x', x), ('kernel', kernel), ('tap', tap)):
    inputs.check_floating(value, name)
    if jnp.ndim(value) != 2:
      raise ValueError(f'{name} must be a matrix, got shape {jnp.shape(value)}')
  if x.shape[1] != kernel.shape[0] or tap.shape != kernel.shape:
    raise ValueError(
      'kernel must have a row for each column of x, and tap its shape, got '
      f'{kernel.shape} and {tap.shape} for x of {x.shape}'
    )
  return _dense_with_moment(x, kernel, tap)


@jax.custom_vjp
def _dense_with_moment(x, kernel, tap):
  del tap
  return x @ kernel


def _dense_forward(x, kernel, tap):
  del tap
  return x @ kernel, (x, kernel)


def _dense_backward(saved, cotangent):
  x, kernel = saved
  moment = (x * x).T @ (cotangent * cotangent)
  return cotangent @ kernel.T, x.T @ cotangent, moment


_dense_with_moment.defvjp(_dense_forward, _dense_backward)
