"""What the exchanges share: words, verdicts, and the dense leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

from gradsparse.backend import joining
from gradsparse.collectives import Comm
from gradsparse.sockets import Context
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Leaves
from gradsparse.sockets import Message
from gradsparse.sockets import Sent
from gradsparse.sockets import Sparse
from gradsparse.sockets import Stream
from gradsparse.sockets import sum_in_rows
from gradsparse.sockets import sums_few_rows
from gradsparse.traffic import counting
import jax
import jax.numpy as jnp
import numpy as np

# A long message fills rows of so many words, the lanes of a TPU: there it need
# not be copied into another tiling to travel.
ROW = 128
# In a shorter message the end of a row would be more than a hundredth.
_LONG = 100 * ROW
# How many messages are read before a dense total is written again. One at a
# time, the bits of eight workers took six times as long on CPUs.
_IN_ONE_PASS = 8


def aligned(words: int) -> int:
  """How many words a message of so many has: whole rows of `ROW` if long."""
  return words if words < _LONG else -(-words // ROW) * ROW


def in_rows(words: jax.Array) -> jax.Array:
  """A long message as rows, filled up with zeros; a short one as it is.

  Args:
    words: uint32[..., n].

  Returns:
    uint32[..., aligned(n) / ROW, ROW] or uint32[..., n].
  """
  *lead, length = words.shape
  if length < _LONG:
    return words
  missing = aligned(length) - length
  words = jnp.pad(words, [(0, 0)] * len(lead) + [(0, missing)])
  return words.reshape(*lead, -1, ROW)


def _travelling(words: Any, ok: Any) -> Any:
  """The arrays of a message, in order: a stream can be cut at its end."""
  if isinstance(words, Stream):
    return words.head, ok, words.words
  return words, ok


def count_words(words: Any) -> int:
  """How many words a message has without its verdict; static."""
  return sum(x.size for x in jax.tree.leaves(_travelling(words, None)))


def to_words(words: Any, ok: jax.Array | None = None) -> jax.Array:
  """A message of uint32, int32 and float32 arrays as one uint32 vector.

  Args:
    words: such arrays, see `Code.pack`.
    ok: uint32 scalar, the word of the verdict. None: there is none.

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


def from_words(message: jax.Array, like: Any, *, verdict: bool = True) -> Any:
  """Inverse of `to_words`.

  Args:
    message: uint32, the words and perhaps more, as a vector or in rows.
    like: gives structure, shapes and dtypes.
    verdict: whether the message has a word for it.
  """
  word = jax.ShapeDtypeStruct((), jnp.uint32) if verdict else None
  leaves, treedef = jax.tree.flatten(_travelling(like, word))
  # A vector first: XLA for TPUs would cut leaves out of a matrix with rows of
  # two words, and fill these up to 128.
  vector = jax.lax.optimization_barrier(message.reshape(-1))
  parts = joining.split(vector, [leaf.shape for leaf in leaves])
  out = [
    jax.lax.bitcast_convert_type(part, leaf.dtype)
    for part, leaf in zip(parts, leaves, strict=True)
  ]
  arrays = jax.tree.unflatten(treedef, out)
  if not isinstance(like, Stream):
    return arrays[0]
  return like._replace(head=arrays[0], words=arrays[2])


def message_bytes(words: int) -> int:
  """Size of a message of so many words, the word of the verdict included."""
  return 4 * aligned(1 + words)


def gather(
  words: Any, ok: jax.Array, beside_bytes: int, comm: Comm
) -> tuple[jax.Array, jax.Array, int | jax.Array]:
  """All workers' messages, whether all are ok, size of one in bytes.

  One word of a message says whether its sender is ok: the last one, or the one
  before the words of a stream. Streams are cut to what the longest one needs.

  Args:
    words: this worker's, see `Code.pack`.
    ok: bool scalar.
    beside_bytes: of the leaves that stay dense, for the plan.
    comm: the workers.

  Returns:
    (uint32[P, ...], for `from_words`; words that did not travel are zero; bool
    scalar; int, or uint32 where it depends on the data).
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
  """All workers' first words, as many as the worker that needs most uses.

  One all-reduce agrees on the size. Only the all-gather itself is inside the
  switch over sizes, so that many sizes are cheap.

  Args:
    words: uint32[sizes[-1]], this worker's.
    used: int32[], how many of them must travel.
    sizes: how many may travel, smallest first.
    comm: the workers.
    beside: bytes of this worker's payload that travel in another way; a plan
      adds them.

  Returns:
    (uint32[P, ...], the first words of each worker as a vector or in rows, zero
    after the size in force; that size in bytes: a uint32 scalar, the same
    everywhere, or an int where there is one size or a plan is made).
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
  # Its words are counted by int32, so four times as many fit below 2**33.
  nbytes = [min(4 * size, counting.MOST_BYTES) for size in sizes]
  return gathered, jnp.asarray(nbytes, jnp.uint32)[number]


def scatter(
  rows: jax.Array, ok: jax.Array, comm: Comm
) -> tuple[jax.Array, jax.Array, int]:
  """Sends row d to worker d, and with each row the word of `gather`.

  Args:
    rows: uint32[P, words].
    ok: bool scalar.
    comm: the workers.

  Returns:
    (uint32[P, words]: row s came from worker s; whether all workers are ok, the
    same everywhere; size of a message in bytes).
  """
  length = rows.shape[1]
  word = jnp.full((comm.size, 1), ok, jnp.uint32)
  message = in_rows(jnp.concatenate([rows, word], axis=1))
  received = comm.all_to_all(message).reshape(comm.size, -1)
  # Every worker hears of everybody, so all come to the same result.
  ok = comm.replicated(jnp.all(received[:, length] == 1))
  return received[:, :length], ok, message.nbytes


def as_dense(message: Message, comm: Comm) -> Exchanged:
  """The sum of what messages stand for, by an all-reduce of all elements."""
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
  messages: jax.Array,
  *,
  sparse: bool,
) -> Any:
  """A total to which all messages were added, in rank order.

  Args:
    add: (total, one message) -> total.
    start: a total.
    messages: uint32[P, ...].
    sparse: they change a few elements. Several in one pass would save nothing,
      and take longer to compile.
  """
  if not sparse and messages.shape[0] <= _IN_ONE_PASS:
    return functools.reduce(add, messages, start)

  def one(total, message):
    return add(total, message), None

  unroll = 1 if sparse else _IN_ONE_PASS
  total, _ = jax.lax.scan(one, start, messages, unroll=unroll)
  return total


def sums_rows(own: Sent, workers: int, ctx: Context) -> bool:
  """Whether messages like this one are added up by `sum_in_rows`.

  Not where messages have several sizes: what comes of all must have one shape.
  """
  return (
    isinstance(own, Sparse)
    and ctx.rung is None
    and sums_few_rows(workers * own.slots, own.space)
  )


def total_of(own: Sent, ctx: Context) -> jax.Array | list[jax.Array]:
  """A sum of messages that came as one message, as `Exchanged.total`.

  Args:
    own: the sum.
    ctx: the context of the messages.
  """
  if isinstance(own, Leaves):
    return own.arrays
  if isinstance(own, Sparse) and sums_rows(own, 1, ctx):
    space = own.space.merged(ctx.leaves.buckets)
    return sum_in_rows(own.values[None], own.indices[None], space)
  return own.add_to(own.zeros())


def sum_dense(leaves: list[jax.Array], comm: Comm) -> list[jax.Array]:
  """Sums of the leaves that stay dense."""
  return comm.sum(leaves) if leaves else []


def count_failed(ok: jax.Array) -> jax.Array:
  """float32, 0 if ok: the sum over workers is 0 if all are."""
  return 1.0 - ok.astype(jnp.float32)
