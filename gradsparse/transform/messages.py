"""The messages of a step: packed by one worker, exchanged by all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import Any, NamedTuple, get_args

from gradsparse import health
from gradsparse.collectives import AxisName
from gradsparse.collectives import Comm
from gradsparse.sockets import Compressor
from gradsparse.sockets import Context
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Leaves
from gradsparse.sockets import Marked
from gradsparse.sockets import Memory
from gradsparse.sockets import Message
from gradsparse.sockets import Sent
from gradsparse.sockets import Shape
from gradsparse.sockets import Signal
from gradsparse.sockets import Sparse
from gradsparse.sockets import Stream
from gradsparse.traffic import counting
from gradsparse.transform.buckets import Buckets
from gradsparse.transform.layout import DensePaths
from gradsparse.transform.layout import Group
from gradsparse.transform.one_pass import Taken
import jax
import jax.numpy as jnp


class Scheme(NamedTuple):
  """The arguments of `compressed_mean`."""

  memory: Memory
  compressor: Compressor
  exchange: Exchange
  axis_name: AxisName | None
  min_size: int | None
  dense_paths: DensePaths
  seed: int
  param_specs: Any
  verify: bool

  @property
  def adds_leaves(self) -> bool:
    """Whether the scheme only sums uncompressed leaves, in their own dtype."""
    code = self.compressor.code
    whole = code.takes is Leaves and code.is_exact
    return whole and self.exchange.adds and not self.memory.floats

  @property
  def judged_on_arrival(self) -> bool:
    """Whether the messages show that a gradient is not finite.

    A sum of uncompressed leaves does, and so do the bounds of a message
    (`Shortcuts.bounds`), if there is no memory, `PreReduce` or `Ladder`.
    """
    compressor = self.compressor
    if self.memory.floats:
      return False
    return self.adds_leaves or (
      compressor.code.shortcuts.bounds is not None
      and compressor.pre_reduce is None
      and compressor.ladder is None
    )


class Outgoing(NamedTuple):
  """A worker's data before it sends.

  Attributes:
    buckets: the leaves, as the memory gets them.
    kept: the memory's state, after accumulating.
    ok: bool scalar: whether this worker accepts the step.
    values: the values to deliver of each bucket.
    signals: leaf number -> the signal of a compressed leaf.
    server_residual: leaf number -> the exchange's state; empty if it has none.
    contexts: the context of each group's message, without the rung.
    pre_reduced_bytes: for each group, the bytes of this worker's operands of
      `PreReduce`.
    one_pass: what kernels accumulated, selected and removed, or None.
  """

  buckets: Buckets
  kept: Any
  ok: jax.Array
  values: list[jax.Array]
  signals: Mapping[int, Signal]
  server_residual: dict[int, jax.Array]
  contexts: Sequence[Context]
  pre_reduced_bytes: list[int]
  one_pass: Taken | None = None

  def dense(self, group: Group) -> list[jax.Array]:
    """The values to deliver of a group's dense leaves."""
    return [self.values[n] for n in self.buckets.of_leaves(group.dense)]


def exchange(
  scheme: Scheme, comm: Comm, outgoing: Outgoing, contexts: Sequence[Context]
) -> tuple[list[Message | None], list[Exchanged]]:
  """Packs, sends and receives the messages of all groups.

  A worker that is not ok sends messages too: the others wait for them, and they
  tell the others to reject the step.

  Args:
    scheme: the scheme.
    comm: the workers.
    outgoing: this worker's data.
    contexts: of the messages, with the rung of each.

  Returns:
    For each group this worker's message, None if all its leaves stay dense; and
    the result of the exchange.
  """
  groups = outgoing.buckets.groups
  packed = [
    _message(scheme, comm, outgoing, group, ctx) if group.compressed else None
    for group, ctx in zip(groups, contexts, strict=True)
  ]
  exchanged = [
    _exchange(scheme, comm.within(group.axes), outgoing, group, own, n)
    for group, own, n in zip(
      groups, packed, outgoing.pre_reduced_bytes, strict=True
    )
  ]
  return [own and own[0] for own in packed], exchanged


def _message(
  scheme: Scheme, comm: Comm, outgoing: Outgoing, group: Group, ctx: Context
) -> tuple[Message, jax.Array, bool]:
  """The message of a group.

  Returns:
    (the message; int32, how many elements found no room in it; whether it has
    all that was selected, unrounded).
  """
  compressor, code = scheme.compressor, scheme.compressor.code
  selected: Any = compressor.select(
    [outgoing.signals[i] for i in group.compressed], ctx
  )
  _check_selected(compressor, selected)
  rounded: Any = code.round(
    scheme.exchange.arrange(selected, code, comm.size), ctx
  )
  own = code.decode(rounded, ctx, 1)
  if not isinstance(own, Sent):
    names = ', '.join(kind.__name__ for kind in get_args(Sent))
    raise TypeError(
      f'code.decode (or code.round, without a decode) must return one of '
      f'{names}, got {type(own).__name__}'
    )
  if _shapes(own) != list(ctx.shapes):
    selects = isinstance(selected, Sent) and _shapes(selected) == _shapes(own)
    raise TypeError(
      ('compressor.select' if selects else 'code.decode')
      + f' must return {type(own).__name__} of leaves of the shapes '
      f'{list(ctx.shapes)}, got {_shapes(own)}'
    )
  words = code.pack(rounded, ctx)
  if code.combines != 'sums':  # arrays of any type can be summed
    _check_words(words)
  ok, overflow = outgoing.ok, jnp.int32(0)
  if isinstance(own, Sparse | Marked):
    ok &= health.can_send(own.values, comm.size)
  if code.limits.dropped is not None:
    overflow = code.limits.dropped(selected, rounded)
  if compressor.ladder is not None and compressor.ladder.overflow is not None:
    overflow += compressor.ladder.overflow(ctx)
  message = Message(
    words,
    rounded,
    own,
    code,
    ctx,
    outgoing.dense(group),
    ok,
    [outgoing.server_residual[i] for i in group.compressed]
    if outgoing.server_residual
    else (),
  )
  return message, overflow, own is selected


def _check_selected(compressor: Compressor, selected: Any) -> None:
  """Checks the result of `Compressor.select`."""
  takes = compressor.code.takes
  if not isinstance(selected, takes):
    kinds = takes if isinstance(takes, tuple) else (takes,)
    raise TypeError(
      f'{compressor.name} selects {type(selected).__name__}, but its code '
      f'takes {" or ".join(t.__name__ for t in kinds)}'
    )
  if isinstance(selected, Sparse) and selected.indices.dtype != jnp.int32:
    raise TypeError(
      f'compressor.select: Sparse.indices must be int32, got '
      f'{selected.indices.dtype}'
    )


def _shapes(payload: Sent) -> list[Shape]:
  """The shapes of the leaves that a payload is of."""
  if isinstance(payload, Leaves):
    return [x.shape for x in payload.arrays]
  return [tuple(shape) for shape in payload.space.shapes]


def _check_words(words: Any) -> None:
  """Checks the dtypes of the result of `Code.pack`."""
  if isinstance(words, Stream):
    words = words.head, words.words
  for path, x in jax.tree_util.tree_leaves_with_path(words):
    kind = getattr(x, 'dtype', type(x).__name__)
    if kind not in (jnp.uint32, jnp.float32):
      raise TypeError(
        f'code.pack: word {jax.tree_util.keystr(path) or "(the only one)"} '
        f'must be an array of uint32 or float32, got {kind}'
      )


def _exchange(
  scheme: Scheme,
  comm: Comm,
  outgoing: Outgoing,
  group: Group,
  packed: tuple[Message, jax.Array, bool] | None,
  pre_reduced_bytes: int,
) -> Exchanged:
  """Sends the message of one group, the result of `_message`."""
  if packed is None:
    # The other groups carry this worker's verdict.
    totals = comm.sum(outgoing.dense(group))
    exchanged = Exchanged(
      [],
      totals,
      1,
      jnp.bool_(True),
      Leaves([]),
      Extras(0, 'dense', lossless=True),
    )
  else:
    message, overflow, lossless = packed
    exchanged = scheme.exchange.run(message, comm)
    nbytes = exchanged.extras.message_bytes
    if isinstance(nbytes, int):
      nbytes += pre_reduced_bytes
    elif pre_reduced_bytes:
      nbytes = counting.total([nbytes, pre_reduced_bytes])
    # Every worker has checked its own entries, so their sum is finite.
    judged = exchanged.extras.judged or isinstance(message.own, Sparse | Marked)
    extras = exchanged.extras._replace(
      message_bytes=nbytes,
      judged=judged,
      overflow=overflow,
      lossless=lossless
      and exchanged.delivered is message.own
      and exchanged.extras.removed is None,
    )
    exchanged = exchanged._replace(extras=extras)
  if comm.recorder is not None:
    comm.recorder.rows += _plan_rows(
      scheme.compressor,
      scheme.axis_name,
      outgoing.buckets,
      group,
      packed and packed[0].own,
      exchanged.extras,
    )
  return exchanged


def _plan_rows(
  compressor: Compressor,
  axis: Any,
  buckets: Buckets,
  group: Group,
  own: Any,
  extras: Extras,
) -> list[counting.Row]:
  """The lines of a plan for the leaves of one message.

  Args:
    compressor: of the scheme.
    axis: name of the mesh axis that the message crosses.
    buckets: the leaves.
    group: the leaves of the message.
    own: this worker's decoded message; None if there is none.
    extras: of the exchange's result.
  """
  layout = buckets.layout
  numbers, nbytes = group.compressed, extras.message_bytes
  assert isinstance(nbytes, int)  # a plan's sizes do not depend on data
  rows: dict[int, counting.Row] = {}
  sizes = [math.prod(layout.shapes[i]) for i in numbers]
  transport = f'{compressor.name}, {extras.transport}'
  # Each leaf is charged its share of the message's entries, if it has one.
  weights = [compressor.share(layout.shapes[i]) for i in numbers]
  shared = layout.selects_globally
  if isinstance(own, Leaves):
    kinds = [x.dtype.itemsize for x in own.arrays]
    weights = [w * size for w, size in zip(weights, kinds, strict=True)]
  if isinstance(own, Sparse):
    weights = list(own.space.limits)
    shared |= sum(weights) > own.slots
  if shared and len(numbers) > 1:
    total = sum(sizes)
    rows[numbers[0]] = counting.Row(
      f'{len(numbers)} leaves, joined',
      total,
      4 * total,
      nbytes,
      transport,
      axis,
    )
  elif numbers:
    ends = [nbytes * c // sum(weights) for c in itertools.accumulate(weights)]
    begins = [0, *ends[:-1]]
    for i, n, begin, end in zip(numbers, sizes, begins, ends, strict=True):
      rows[i] = counting.Row(
        layout.names[i], n, 4 * n, end - begin, transport, axis
      )
  for i in group.dense:
    n = math.prod(layout.shapes[i])
    nbytes = n * jnp.dtype(health.wide(buckets.dtypes[i])).itemsize
    rows[i] = counting.Row(layout.names[i], n, 4 * n, nbytes, 'dense', axis)
  return [rows[i] for i in sorted(rows)]
