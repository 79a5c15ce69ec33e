"""The second socket: what is sent, how it is coded, and what surrounds it.

A newcomer fills three fields of a `Compressor` (name, select, code). The other
parts are optional; few schemes need them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

from gradsparse.sockets.space import Shape
import jax
from jax.sharding import PartitionSpec

# How a leaf is divided between the devices of one worker: for each of its
# dimensions, from the first on, the mesh axes. () if the leaf is whole.
Cut = tuple[tuple[str, ...], ...]


class Signal(NamedTuple):
  """What a compressor may look at, for one leaf (float32, leaf-shaped).

  Attributes:
    value: what is to be delivered (memory and gradient together).
    gradient: this step's gradient alone (AdaComp looks at it).
    moment: the accumulated second moment, or None (variance criterion).
  """

  value: jax.Array
  gradient: jax.Array
  moment: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class MessageLeaves:
  """The leaves of one message, as this device has them. Static.

  Attributes:
    shapes: shapes of the leaves.
    cuts: how each leaf is divided between the devices of this worker; () if
      all leaves are whole.
    buckets: how many leaves each bucket has; () if each leaf is a bucket by
      itself. The memory stores a bucket as one array, so a mean may come back
      by leaves (`shapes`) or by buckets (`Space.merged`).
    shards: the devices of this worker (`collectives.Shards`), if there are
      several.
  """

  shapes: tuple[Shape, ...]
  cuts: tuple[Cut, ...] = ()
  buckets: tuple[int, ...] = ()
  shards: Any = None


class Context(NamedTuple):
  """What surrounds one message.

  Attributes:
    leaves: the leaves of the message.
    workers: P, the number of workers.
    step: int32 scalar, updates done so far.
    key: PRNG key, different for each worker and step.
    shared_key: PRNG key, different for each step, the same on all workers.
    state: the compressor's own state (`CompressorState`).
    prepared: what was computed before the selection: what the workers reduced
      (`PreReduce`), or what the ladder saw (`Ladder.look`). None if neither.
    rung: the size in force, an element of `Ladder.rungs(shapes)`, or None.
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

  The exchange cuts them to the smallest of `sizes` that is enough for every
  worker. What was cut off arrives as zeros.

  Attributes:
    head: tree of uint32 and float32 arrays, which travel whole.
    words: uint32[sizes[-1]].
    used: int32[], how many of this worker's words must travel.
    sizes: numbers of words that may travel, smallest first; static.
  """

  head: Any
  words: jax.Array
  used: jax.Array
  sizes: tuple[int, ...]


def _as_it_is(selected: Any, ctx: Context) -> Any:
  """The rounding of a format that can say everything."""
  del ctx
  return selected


class OfParts(NamedTuple):
  """What a reduce-scatter must know of a code of parts.

  `Compressor.select` returns `Leaves` all the same. `Code.round` gets `Parts`,
  first with a row for each worker, then with one; `Code.pack` returns
  uint32[rows, words]; the rows that `Code.unpack` gets can be other workers'
  copies of one part.

  Attributes:
    block_size: the length of a part is a multiple of this.
    is_contraction: what `Code.round` loses is smaller, in some norm, than what
      it was given. So the loss may be added to the next input, and does not
      pile up.
  """

  block_size: int
  is_contraction: bool = False


class Limits(NamedTuple):
  """How much a code can take.

  Attributes:
    most_elements: the most elements that a message can count, if the format is
      narrower than int32. Leaves then travel in several messages.
    group_elements: the most elements that a message of several leaves counts,
      if the format does better with fewer. A larger leaf travels alone.
    gain: shapes -> by how much the largest number that the code computes may
      exceed the largest that it was given, as a factor. A worker takes in no
      gradient that could overflow there. For a scheme without memory 1 is good
      enough: an overflow costs one step.
  """

  most_elements: int | None = None
  group_elements: int | None = None
  gain: Callable[[Sequence[Shape]], float] = lambda shapes: 1.0


class Code(NamedTuple):
  """How what was selected travels, and what it stands for.

  `unpack` is the exact inverse of `pack` on what `round` returns, so what a
  worker delivered is known without unpacking its own message.

  Attributes:
    pack: (rounded, ctx) -> words: a tree of uint32 and float32 arrays of
      static shapes, or a `Stream`.
    unpack: (words, like, ctx) -> rounded. `like` is this worker's own: all
      workers' have its shapes.
    round: (selected, ctx) -> rounded: the only lossy function.
    decode: (rounded, ctx, summands) -> Sparse, Leaves or Parts: what the sum
      of `summands` workers' roundings stands for.
    takes: the type of what `select` returns, or a tuple of types.
    combines: what an exchange may do with words: read one worker's at a time
      ('messages'), add words of several workers up and unpack them as one
      ('sums'), or count bits, one for each element, 1 if it is not negative
      ('votes'); or `OfParts`, for a reduce-scatter.
    dropped: (selected, rounded) -> int32, how many elements found no slot in
      `round` (counted as overflow). None: all do.
    limits: how much the code can take.
    bounds: (rounded, ctx) -> float32 array: no element that the rounding of one
      worker stands for is larger in magnitude than the largest of these, and
      if an element of `selected` is not finite, one of these is not. So neither
      the gradient nor the mean is judged by a look at all elements.
      None: only the elements themselves tell.
  """

  pack: Callable[[Any, Context], Any]
  unpack: Callable[[Any, Any, Context], Any]
  round: Callable[[Any, Context], Any] = _as_it_is
  decode: Callable[[Any, Context, int], Any] = lambda rounded, ctx, summands: (
    rounded
  )
  takes: type[Any] | tuple[type[Any], ...] = object
  combines: str | OfParts = 'messages'
  dropped: Callable[[Any, Any], jax.Array] | None = None
  limits: Limits = Limits()
  bounds: Callable[[Any, Context], jax.Array] | None = None

  @property
  def is_exact(self) -> bool:
    """Whether `round` changes nothing."""
    return self.round is _as_it_is


class LeafRule(NamedTuple):
  """Which leaves are compressed; the others are all-reduced as they are.

  Attributes:
    accepts: shape -> whether a leaf of that shape can be compressed at all.
    refusal: which leaves it does not accept, for the message.
    min_size: leaves with fewer elements stay dense, unless overridden.
    dense_1d: whether 1-D leaves (and scalars) stay dense, unless overridden.
  """

  accepts: Callable[[Shape], bool] = lambda shape: True
  refusal: str = ''
  min_size: int = 0
  dense_1d: bool = False


class PreReduce(NamedTuple):
  """What is reduced over the workers before they select, such as a scale.

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
  """The sizes that a message can have, where it has more than one.

  Attributes:
    rungs: shapes -> sizes, smallest first. A size is anything hashable; with
      `at_step` it is a density. `select` gets the one in force as `ctx.rung`.
    choose: ctx -> int32, the number of the smallest rung that this worker
      needs.
    look: (signals, ctx) -> `Context.prepared`: what both `choose` and `select`
      need, computed once.
    delivered: ctx -> what a message delivers, if that is the same whatever its
      size: a `Sent`, of which no more is asked than what a memory needs. None:
      the message tells.
    overflow: ctx -> int32, how many elements find no room in the rung and stay
      in the memory. None: there is always room.
    agreed: whether `choose` gives the same on every worker by itself (a
      schedule does, data do not).
    at_step: int32 step -> int32, the number of the rung in force, if the step
      alone decides. `plan` calls it, and `init` for step 0; it raises
      ValueError if the step is concrete and its density out of range. None:
      data decide, or a traced density.
    usable: step -> bool scalar, whether the density at this step is in range;
      if not, all workers reject the step. None: it always is.
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
  """State of a compressor's own, such as PowerSGD's warm start.

  It is the same on all workers, except for the fields that the class of a
  NamedTuple state names by `local` (`gs.extend.local`).

  Attributes:
    init: shapes -> state: a tuple, with a tree for each leaf.
    update: (sum of all workers' roundings, ctx) -> state. Only an exchange
      that adds words up knows that sum.
    shard: (cut, shape) -> PartitionSpec of the state of a leaf that is divided
      so between the devices of a worker. None: they all have the same.
  """

  init: Callable[[Sequence[Shape]], Any]
  update: Callable[[Any, Context], Any]
  shard: Callable[[Cut, Shape], PartitionSpec] | None = None


class Compressor(NamedTuple):
  """What goes on the wire: most schemes need the first three fields only.

  Attributes:
    name: for tables and messages.
    select: (signals, ctx) -> Sparse or Leaves, or anything else that its own
      code understands. Shapes are static.
    code: how that travels.
    leaves: which leaves it takes.
    ladder: the sizes of its message, if there are several.
    pre_reduce: what is reduced over the workers before they select.
    state: its own state.
    share: shape -> a leaf's share of the message, in proportion, for the lines
      of a plan. A message of `Sparse` tells by itself.
    selects_globally: whether what is selected of a leaf depends on the other
      leaves, so that all must be on one device and in one message.
    unbiased: whether the decoded value's expectation is the signal.
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
