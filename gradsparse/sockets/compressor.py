"""The compressor socket: what is sent, and how it is coded.

A first scheme fills three fields of a `Compressor` (name, select, code). The
other parts are optional; few schemes need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

from gradsparse.sockets.space import Shape
import jax
from jax.sharding import PartitionSpec

# How a leaf is sharded over the devices of one worker: the mesh axes of each of
# its dimensions, from the first on. () if the leaf is whole.
Cut = tuple[tuple[str, ...], ...]


class Signal(NamedTuple):
  """The input of a compressor for one leaf (float32, leaf-shaped).

  Attributes:
    value: the values to deliver (memory and gradient together).
    gradient: this step's gradient alone (AdaComp reads it).
    moment: the accumulated second moment, or None (variance criterion).
    found: the largest entries of each chunk (`backend.chunks.take`), if the
      kernel of transform/one_pass.py has searched for them; else None.
  """

  value: jax.Array
  gradient: jax.Array
  moment: jax.Array | None = None
  found: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class MessageLeaves:
  """The leaves of one message, as this device has them. Static.

  >>> import gradsparse as gs
  >>> gs.extend.MessageLeaves(((5, 3), (3,))).shapes
  ((5, 3), (3,))

  Attributes:
    shapes: shapes of the leaves.
    cuts: how each leaf is sharded over the devices of this worker; () if all
      leaves are whole.
    buckets: the number of leaves in each bucket; () if each leaf is a bucket.
      The memory stores a bucket as one array, so a mean may come back by leaves
      (`shapes`) or by buckets (`Space.merged`).
    shards: the devices of this worker (`collectives.Shards`), if there are
      several.
  """

  shapes: tuple[Shape, ...]
  cuts: tuple[Cut, ...] = ()
  buckets: tuple[int, ...] = ()
  shards: Any = None


class Context(NamedTuple):
  """The context of one message.

  Attributes:
    leaves: the leaves of the message.
    workers: P, the number of workers.
    step: int32 scalar, updates done so far.
    key: PRNG key, different for each worker and step.
    shared_key: PRNG key, different for each step, equal on all workers.
    state: the compressor's own state (`CompressorState`).
    prepared: the result of `PreReduce` or of `Ladder.look`, computed before the
      selection; None if there is neither.
    rung: this step's size, an element of `Ladder.rungs(shapes)`, or None.
  """

  leaves: MessageLeaves
  workers: int
  step: jax.Array
  key: jax.Array
  shared_key: jax.Array
  state: Any = ()
  prepared: Any = None
  rung: Any = None

  @property
  def shapes(self) -> tuple[Shape, ...]:
    """Shapes of the leaves, as this device has them."""
    return self.leaves.shapes


class Stream(NamedTuple):
  """Words whose number depends on the data.

  The exchange sends the smallest of `sizes` that is enough for every worker.
  The other words arrive as zeros.

  Attributes:
    head: tree of uint32 and float32 arrays, which are sent completely.
    words: uint32[sizes[-1]].
    used: int32[], how many of this worker's words must be sent.
    sizes: the numbers of words that can be sent, smallest first; static.
  """

  head: Any
  words: jax.Array
  used: jax.Array
  sizes: tuple[int, ...]


def _as_it_is(selected: Any, ctx: Context) -> Any:
  """The rounding of an exact format."""
  del ctx
  return selected


class OfParts(NamedTuple):
  """Properties of a code of parts, for a reduce-scatter.

  `Compressor.select` still returns `Leaves`. `Code.round` gets `Parts`, first
  with a row for each worker, then with one row. `Code.pack` returns
  uint32[rows, words]. The rows of `Code.unpack` may be other workers' copies of
  one part.

  Attributes:
    block_size: the length of a part is a multiple of this.
    is_contraction: whether the error of `Code.round` is smaller, in some norm,
      than its input. Then errors that are added to the next input do not
      accumulate.
  """

  block_size: int
  is_contraction: bool = False


class Limits(NamedTuple):
  """The limits of a code.

  Attributes:
    most_elements: the most elements of a message, if the format has fewer than
      int32 can count. Leaves are then sent in several messages.
    group_elements: the most elements of a message of several leaves, if the
      format is better with fewer. A larger leaf is sent alone.
    dropped: (selected, rounded) -> int32, how many elements got no slot in
      `Code.round` (counted as overflow). None: all get one.
  """

  most_elements: int | None = None
  group_elements: int | None = None
  dropped: Callable[[Any, Any], jax.Array] | None = None


class Adder(NamedTuple):
  """Adds messages up in a form of its own, and not payload by payload.

  Attributes:
    start: like -> a total of zeros, an array or a tree of arrays. `like` is
      this worker's `rounded`.
    add: (total, rounded) -> the total with one more message.
    finish: (total, like) -> as `Exchanged.total`.
  """

  start: Callable[[Any], Any]
  add: Callable[[Any, Any], Any]
  finish: Callable[[Any, Any], Any]


class Shortcuts(NamedTuple):
  """Faster ways to read messages than to unpack and decode each of them.

  Attributes:
    bounds: (rounded, ctx) -> float32 array. No decoded element of a worker has
      a larger magnitude than the largest number in it. If an element of
      `selected` is not finite, a number in it is not. So no pass over all
      elements is needed to check the gradient and the mean. None: it is needed.
    adder: rounded -> the `Adder` of such messages on TPUs, or None to add them
      payload by payload.
    reads_rows: whether `Code.unpack` also takes the first array of words as
      TPUs gather long messages: in rows, with more words at the end.
  """

  bounds: Callable[[Any, Context], jax.Array] | None = None
  adder: Callable[[Any], Adder | None] = lambda rounded: None
  reads_rows: bool = False


class Code(NamedTuple):
  """The format of selected values in a message.

  `unpack` is the exact inverse of `pack` on results of `round`, so a worker
  knows what it delivered without unpacking its own message.

  Attributes:
    pack: (rounded, ctx) -> words: a tree of uint32 and float32 arrays of
      static shapes, or a `Stream`.
    unpack: (words, like, ctx) -> rounded. `like` is this worker's own
      `rounded`; that of every worker has the same shapes.
    round: (selected, ctx) -> rounded: the only lossy function.
    decode: (rounded, ctx, summands) -> Sparse, Marked, Leaves or Parts: the
      values of one worker's rounding, or of a sum of `summands` roundings.
    takes: the type of the result of `select`, or a tuple of types.
    combines: what an exchange may do with words. 'messages': read one worker's
      at a time. 'sums': sum words of several workers and unpack the sum.
      'votes': count bits, one for each element, 1 if it is not negative. An
      `OfParts`: a reduce-scatter.
    limits: the code's limits.
    shortcuts: faster ways to read messages; a first code needs none.
    mark: (leaves, ctx) -> `codes.marked.Coded`: rounds and codes elements
      before it is known how many are sent. `leaves` has the values of each leaf
      and which of them to send. `compressors.by_rule` needs it.
  """

  pack: Callable[[Any, Context], Any]
  unpack: Callable[[Any, Any, Context], Any]
  round: Callable[[Any, Context], Any] = _as_it_is
  decode: Callable[[Any, Context, int], Any] = lambda rounded, ctx, summands: (
    rounded
  )
  takes: type[Any] | tuple[type[Any], ...] = object
  combines: str | OfParts = 'messages'
  limits: Limits = Limits()
  shortcuts: Shortcuts = Shortcuts()
  mark: (
    Callable[[Sequence[tuple[jax.Array, jax.Array]], Context], Any] | None
  ) = None

  @property
  def is_exact(self) -> bool:
    """Whether `round` changes nothing."""
    return self.round is _as_it_is


class LeafRule(NamedTuple):
  """Which leaves are compressed; the others are all-reduced uncompressed.

  Attributes:
    accepts: shape -> whether a leaf of that shape can be compressed.
    refusal: a description of leaves that are not accepted, for messages.
    min_size: leaves with fewer elements stay dense, unless overridden.
    dense_1d: whether 1-D leaves (and scalars) stay dense, unless overridden.
  """

  accepts: Callable[[Shape], bool] = lambda shape: True
  refusal: str = ''
  min_size: int = 0
  dense_1d: bool = False


class PreReduce(NamedTuple):
  """A reduction over the workers before selection, such as that of a scale.

  The operands of a worker count as a part of its message.

  Attributes:
    reduce: 'max' or 'mean' over workers.
    operands: (signals, ctx) -> tree of arrays.
    finish: (reduced tree, ctx) -> `Context.prepared`.
  """

  reduce: str
  operands: Callable[[list[Signal], Context], Any]
  finish: Callable[[Any, Context], Any] = lambda reduced, ctx: reduced


class Ladder(NamedTuple):
  """The sizes of a message that can have more than one.

  Attributes:
    rungs: shapes -> sizes, smallest first. A size is anything hashable; with
      `at_step` it is a density. `select` gets this step's size as `ctx.rung`.
    choose: ctx -> int32, the number of the smallest rung that this worker
      needs.
    look: (signals, ctx) -> `Context.prepared`: values that both `choose` and
      `select` need, computed once.
    delivered: ctx -> the delivered values, where every size delivers the same:
      an object with `count`, `only_if` and `deliveries`. None: they are decoded
      from the message.
    overflow: ctx -> int32, how many elements exceed the rung and stay in the
      memory. None: there is always room.
    agreed: whether `choose` is equal on all workers without communication, as
      for a schedule.
    at_step: int32 step -> int32, the number of the rung, if the step alone
      decides. `plan` calls it, and `init` for step 0. It raises ValueError if
      the step is concrete and its density out of range. None: data or a traced
      density decide.
    usable: step -> bool scalar, whether this step's density, or another traced
      argument, is in range; if not, all workers reject the step. None: always.
  """

  rungs: Callable[[Sequence[Shape]], tuple[Any, ...]]
  choose: Callable[[Context], jax.Array]
  look: Callable[[list[Signal], Context], Any] | None = None
  delivered: Callable[[Context], Any] | None = None
  overflow: Callable[[Context], jax.Array] | None = None
  agreed: bool = False
  at_step: Callable[[jax.Array], jax.Array] | None = None
  usable: Callable[[jax.Array], jax.Array] | None = None


class CompressorState(NamedTuple):
  """A compressor's own state, such as PowerSGD's warm start.

  The state is equal on all workers, except for fields that the class of a
  NamedTuple state names by `local` (`gs.extend.local`).

  Attributes:
    init: shapes -> state: a tuple, with a tree for each leaf.
    update: (sum of all workers' roundings, ctx) -> state. It needs an exchange
      that sums words.
    shard: (cut, shape) -> PartitionSpec of the state of a leaf with this
      sharding. None: the state is equal on all devices of a worker.
  """

  init: Callable[[Sequence[Shape]], Any]
  update: Callable[[Any, Context], Any]
  shard: Callable[[Cut, Shape], PartitionSpec] | None = None


class Compressor(NamedTuple):
  """What is sent. Most schemes need the first three fields only.

  Attributes:
    name: the name in tables and messages.
    select: (signals, ctx) -> Sparse or Leaves, or another type that the code
      takes. Shapes are static.
    code: the format of the selected values.
    leaves: which leaves are compressed.
    ladder: the sizes of the message, if there are several.
    pre_reduce: a reduction over the workers before selection.
    state: the compressor's own state.
    share: shape -> a leaf's share of the message, in proportion, for the lines
      of a plan. A message of `Sparse` does not need it.
    selects_globally: whether the selection in a leaf depends on other leaves,
      so that all must be on one device and in one message.
    unbiased: whether the decoded value's expectation is the signal.
    per_chunk: (elements of a chunk, a function: elements -> entries), if
      `select` takes exactly the entries of largest magnitude of each chunk of a
      leaf. Kernels on TPUs and GPUs find the entries while they accumulate
      (`Signal.found`), and remove the entries from the memory if the code is
      exact. With another `select` it must be None.
  """

  name: str
  select: Callable[[list[Signal], Context], Any]
  code: Code
  leaves: LeafRule = LeafRule()
  ladder: Ladder | None = None
  pre_reduce: PreReduce | None = None
  state: CompressorState | None = None
  share: Callable[[Shape], int] = math.prod
  selects_globally: bool = False
  unbiased: bool = False
  per_chunk: tuple[int, Callable[[int], int]] | None = None
