"""Functions that exchanges share: words, verdicts, dense leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

from gradsparse.backend import joining
from gradsparse.backend.storage import LANES
from gradsparse.collectives import Comm
from gradsparse.sockets import Context
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Leaves
from gradsparse.sockets import Message
from gradsparse.sockets import Sent
from gradsparse.sockets import Sparse
from gradsparse.sockets import Stream
from gradsparse.sockets import sum_by_leaf
from gradsparse.sockets import sums_by_leaf
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import numpy as np

# A long message fills rows of a TPU's lanes, which then need not copy it into
# another tiling before a collective. In a shorter one, padding could exceed a
# hundredth.
_LONG = 100 * LANES
# Messages that one pass over a dense total adds. Single passes took six times
# as long for the bits of eight workers.
IN_ONE_PASS = 8


def aligned(words: int) -> int:
  """The words of a message with padding: whole rows if it is long."""
  return words if words < _LONG else -(-words // LANES) * LANES


def in_rows(words: jax.Array) -> jax.Array:
  """Reshapes a long message to rows, padded with zeros; keeps a short one.

  Args:
    words: uint32[..., n].

  Returns:
    uint32[..., aligned(n) / LANES, LANES] or uint32[..., n].
  """
  *lead, length = words.shape
  if length < _LONG:
    return words
  missing = aligned(length) - length
  words = jnp.pad(words, [(0, 0)] * len(lead) + [(0, missing)])
  return words.reshape(*lead, -1, LANES)


def _travelling(words: Any, ok: Any) -> Any:
  """The arrays of a message in order: a stream is last, so it can be cut."""
  if isinstance(words, Stream):
    return words.head, ok, words.words
  return words, ok


def to_words(words: Any, ok: jax.Array | None = None) -> jax.Array:
  """Packs a message of uint32, int32 and float32 arrays into a uint32 vector.

  Args:
    words: the arrays, see `Code.pack`.
    ok: uint32 scalar, the word of the verdict, or None.

  Returns:
    uint32[aligned(n)], zeros after the n words.
  """
  parts = [
    jax.lax.bitcast_convert_type(x, jnp.uint32).reshape(-1)
    for x in jax.tree.leaves(_travelling(words, ok))
  ]
  size = sum(x.shape[0] for x in parts)
  if aligned(size) > size:
    parts.append(jnp.zeros(aligned(size) - size, jnp.uint32))
  return joining.concat_few(parts) if parts else jnp.zeros(0, jnp.uint32)


def from_words(
  message: jax.Array,
  like: Any,
  *,
  verdict: bool = True,
  keep_rows: bool = False,
) -> Any:
  """Inverse of `to_words`.

  Args:
    message: uint32, the words and perhaps more, as a vector or in rows.
    like: gives structure, shapes and dtypes.
    verdict: whether the message has a word for the verdict.
    keep_rows: whether the first array may be returned in rows, with more words
      at the end, for `joining.split`.
  """
  word = jax.ShapeDtypeStruct((), jnp.uint32) if verdict else None
  leaves, treedef = jax.tree.flatten(_travelling(like, word))
  rows = message
  if not keep_rows or message.ndim == 1:
    # A vector first: otherwise XLA for TPUs would cut leaves out of a matrix
    # with rows of two words, padded to 128.
    rows = jax.lax.optimization_barrier(message.reshape(-1))
  parts = joining.split(rows, [leaf.shape for leaf in leaves])
  if rows.ndim > 1:
    parts[0] = rows[: -(-leaves[0].size // LANES)]
  out = [
    jax.lax.bitcast_convert_type(part, leaf.dtype)
    for part, leaf in zip(parts, leaves, strict=True)
  ]
  arrays = jax.tree.unflatten(treedef, out)
  if not isinstance(like, Stream):
    return arrays[0]
  return like._replace(head=arrays[0], words=arrays[2])


def message_bytes(words: Any) -> int:
  """The bytes of a message: its words, and the word of the verdict."""
  sizes = [x.size for x in jax.tree.leaves(_travelling(words, None))]
  return 4 * aligned(1 + sum(sizes))


def gather(
  words: Any, ok: jax.Array, beside_bytes: int, comm: Comm
) -> tuple[jax.Array, jax.Array, int | jax.Array]:
  """Gathers all workers' messages and verdicts.

  One word of a message says whether its sender is ok: the last one, or the one
  before the words of a stream. All streams are cut to the longest one's length.

  Args:
    words: this worker's message, see `Code.pack`.
    ok: bool scalar, this worker's verdict.
    beside_bytes: bytes of the leaves that stay dense, for the plan.
    comm: the workers.

  Returns:
    (uint32[P, ...] messages for `from_words`, with zeros for words not sent;
    bool scalar, whether all are ok; the bytes of one message, an int, or uint32
    if it depends on the data).
  """
  message = to_words(words, ok.astype(jnp.uint32))
  fixed = words.head if isinstance(words, Stream) else words
  head = 1 + sum(x.size for x in jax.tree.leaves(fixed))
  used, sizes = jnp.int32(head), [message.size]
  if isinstance(words, Stream):
    used, sizes = head + words.used, [head + size for size in words.sizes]
  messages, nbytes = gather_cut(message, used, sizes, comm, beside=beside_bytes)
  verdicts = messages[:, *np.unravel_index(head - 1, messages.shape[1:])]
  return messages, jnp.all(verdicts == 1), nbytes


def gather_cut(
  words: jax.Array,
  used: jax.Array,
  sizes: Sequence[int],
  comm: Comm,
  *,
  beside: int = 0,
) -> tuple[jax.Array, int | jax.Array]:
  """Gathers the first words of all workers, as many as the longest message has.

  One all-reduce agrees on the size. Only the all-gather itself is inside the
  switch over sizes, so that many sizes are cheap.

  Args:
    words: uint32[sizes[-1]], this worker's words.
    used: int32[], how many of these words must be sent.
    sizes: the numbers of words that can be sent, smallest first.
    comm: the workers.
    beside: bytes of this worker's payload in other collectives; a plan adds
      them.

  Returns:
    (uint32[P, ...], the first words of each worker as a vector or in rows, zero
    after the size sent; that size in bytes: a uint32 scalar, equal everywhere,
    or an int where there is one size or a plan is made).
  """
  words = in_rows(words)
  sizes = sorted(set(map(aligned, sizes)))
  largest = sizes[-1]

  def at(size):
    def send(words):
      gathered = comm.gather(in_rows(words.reshape(-1)[:size]))
      flat = gathered.reshape(gathered.shape[0], -1)
      padded = jnp.pad(flat, ((0, 0), (0, largest - size)))
      return padded.reshape(-1, *words.shape)

    return send

  if len(sizes) == 1:
    return comm.gather(words), 4 * largest
  most = comm.agree(used)
  if comm.recorder is not None:  # a plan counts on the largest
    comm.recorder.rungs.extend(
      (n + beside, int(max(counting.sent_bytes('all_gather', n, comm.size))))
      for n in (4 * size for size in sizes)
    )
    return comm.gather(words), 4 * largest
  number = jnp.sum(jnp.asarray(sizes[:-1]) < most).astype(jnp.int32)
  gathered = comm.switch(number, [at(size) for size in sizes], words)
  # Words are counted in int32, so their bytes stay below 2**33.
  nbytes = [min(4 * size, counting.MOST_BYTES) for size in sizes]
  return gathered, jnp.asarray(nbytes, jnp.uint32)[number]


def scatter(
  rows: jax.Array, ok: jax.Array, comm: Comm
) -> tuple[jax.Array, jax.Array, int]:
  """Sends row d, with this worker's verdict, to worker d.

  Args:
    rows: uint32[P, words].
    ok: bool scalar, this worker's verdict.
    comm: the workers.

  Returns:
    (uint32[P, words], whose row s came from worker s; bool scalar, whether all
    workers are ok, equal everywhere; the bytes of a message).
  """
  length = rows.shape[1]
  word = jnp.full((comm.size, 1), ok, jnp.uint32)
  message = in_rows(jnp.concatenate([rows, word], axis=1))
  received = comm.all_to_all(message).reshape(comm.size, -1)
  # Every worker receives all verdicts, so the result is equal everywhere.
  ok = comm.replicated(jnp.all(received[:, length] == 1))
  return received[:, :length], ok, message.nbytes


def as_dense(message: Message, comm: Comm) -> Exchanged:
  """The sum of the decoded messages, by an all-reduce of all elements."""
  own = message.own
  total, dense, failed = comm.sum(
    (own.add_to(own.zeros()), message.dense, count_failed(message.ok))
  )
  return Exchanged(
    total=total,
    dense=dense,
    weight=comm.size,
    ok=failed == 0,
    delivered=own,
    extras=Extras(message.dense_bytes, 'dense all-reduce'),
  )


def add_up(
  add: Callable[[Any, jax.Array], Any],
  start: Any,
  messages: Any,
  *,
  sparse: bool,
) -> Any:
  """Adds all messages to a total, in rank order.

  Args:
    add: (total, one message) -> total.
    start: the first total.
    messages: uint32[P, ...]; sparse ones may be decoded, with such an axis.
    sparse: whether a message changes few elements. Then several in one pass
      save nothing and take longer to compile.
  """
  if not sparse and messages.shape[0] <= IN_ONE_PASS:
    return functools.reduce(add, messages, start)

  def one(total, message):
    return add(total, message), None

  unroll = 1 if sparse else IN_ONE_PASS
  total, _ = jax.lax.scan(one, start, messages, unroll=unroll)
  return total


def sums_leaves(own: Sent, workers: int, ctx: Context) -> bool:
  """Whether messages like this one are summed by `sum_by_leaf`.

  Messages of several sizes are not, as all sizes must give one shape.
  """
  return (
    isinstance(own, Sparse)
    and ctx.rung is None
    and sums_by_leaf(workers * own.slots, own.space)
  )


def total_of(own: Sent, ctx: Context) -> jax.Array | list[jax.Array]:
  """Turns a sum of messages in the form of one message to `Exchanged.total`.

  Args:
    own: the sum.
    ctx: the context of the messages.
  """
  if isinstance(own, Leaves):
    return own.arrays
  if isinstance(own, Sparse) and sums_leaves(own, 1, ctx):
    space = own.space.merged(ctx.leaves.buckets)
    return sum_by_leaf(own.values[None], own.indices[None], space)
  return own.add_to(own.zeros())


def count_failed(ok: jax.Array) -> jax.Array:
  """float32, 0 if ok: the sum over workers is 0 if all are ok."""
  return 1.0 - ok.astype(jnp.float32)
