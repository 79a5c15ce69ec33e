"""The three sockets of a scheme: memory, compressor, exchange.

GRACE's vocabulary (Xu et al., ICDCS 2021), which the field knows. A scheme is
one choice in each; `compressed_mean` joins them. All are NamedTuples of pure
functions, so a scheme is data and a new one needs no class.

  accumulate -> [agreement] -> encode -> exchange -> update, release
    memory       compressor    compressor  exchange    memory

A compressor sees all leaves of its group at once, as a list: whether it works
leaf by leaf or globally is its own business, and every scheme sends one
message. Compressors never talk to other workers; what must be agreed before
encoding (a shared scale, a low-rank basis) goes through their `Agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gradsparse.delivery import Delivered
from gradsparse.delivery import Sparse
import jax

Shape = tuple[int, ...]


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


class Context(NamedTuple):
  """What surrounds one encoding.

  Attributes:
    shapes: shapes of the leaves in the group.
    workers: P.
    step: int32 scalar, updates done so far.
    key: PRNG key, different for each worker and step.
    shared_key: PRNG key, different for each step, the same on all workers.
    state: the compressor's own state.
    rung: the size in force, an element of `Compressor.rungs(shapes)`.
  """

  shapes: tuple[Shape, ...]
  workers: int
  step: jax.Array
  key: jax.Array
  shared_key: jax.Array
  state: Any
  rung: Any


class Memory(NamedTuple):
  """What a worker keeps between steps.

  Its state is a NamedTuple of params-shaped float32 trees with a method
  `pending()` that returns what the worker still owes, and one
  `with_pending(tree)` that returns the state owing something else.

  Attributes:
    init: params -> state.
    accumulate: (grads, state, extra, whole) -> state. `whole` is a tree of
      bools: leaves that stay dense. `extra` are the keyword arguments of the
      update.
    signals: (grads, state, whole) -> tree of Signal, of the state after
      `accumulate`; computes nothing.
    update: (state, means, whole) -> updates: what goes to the optimizer.
      Made of what is equal on all workers: the means, and what of the state
      was made of means alone.
    release: (state, means, delivered, accepted) -> state: learns what was
      delivered. In a step that was not accepted nothing was, and nothing
      decays or moves.
    lossless: whether what is not delivered is kept (law 1 applies).
    floats: float32 numbers it keeps for each parameter.
    moments: whether the update takes a `second_moment`, in `extra`.
    momentum: factor of the momentum that is in the updates already, so that
      none should follow; 0 without one.
  """

  init: Callable[[Any], Any]
  accumulate: Callable[[Any, Any, dict[str, Any], Any], Any]
  signals: Callable[[Any, Any, Any], Any]
  update: Callable[[Any, Any, Any], Any]
  release: Callable[[Any, Any, Any, jax.Array], Any]
  lossless: bool = True
  floats: int = 0
  moments: bool = False
  momentum: Any = 0.0


class Agreement(NamedTuple):
  """What all workers settle before they encode; it does not travel again.

  Attributes:
    reduce: 'max' or 'mean' over workers.
    propose: (signals, ctx) -> tree of arrays.
    settle: (reduced tree, ctx) -> what encode and decode get as `shared`.
  """

  reduce: str
  propose: Callable[[list[Signal], Context], Any]
  settle: Callable[[Any, Context], Any] = lambda reduced, ctx: reduced


class Codec(NamedTuple):
  """A lossless form of `Sparse` on the wire, after one lossy rounding.

  Attributes:
    quantise: (Sparse, PRNG key) -> Sparse, rounded to what the format can
      say; entries that it cannot say become empty slots. Sorted.
    pack: quantised Sparse -> uint32[words(...)].
    unpack: (words, count, space) -> the same Sparse.
    words: (count, space) -> int, size of a message in 32-bit words.
    exact: whether quantise changes nothing.
    bounded: whether entries can fail to find a slot (counted as overflow).
    sendable: (values of one leaf, which are wanted) -> which of those
      `quantise` keeps, where that is known before; they alone need room.
  """

  quantise: Callable[[Sparse, jax.Array], Sparse]
  pack: Callable[[Sparse], jax.Array]
  unpack: Callable[..., Sparse]
  words: Callable[..., int]
  exact: bool
  bounded: bool = False
  sendable: Callable[[jax.Array, jax.Array], jax.Array] | None = None


class Stream(NamedTuple):
  """A payload whose length depends on the data.

  It is encoded once, into words that hold the longest message there can be.
  The exchange cuts them to the smallest of `sizes` that holds what every
  worker uses; what was cut off arrives as zeros.

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


class Compressor(NamedTuple):
  """Which coordinates and which values go on the wire.

  Attributes:
    name: for tables and messages.
    encode: (prepared, shared, ctx) -> payload: a `Sparse` (then `codec` says
      how it travels), a `Stream`, or a tree of uint32 and float32 arrays.
      Static shapes.
    decode: (payload, shared, ctx, summands) -> Sparse or list of float32
      leaves: what `summands` workers' payloads, added up, stand for.
    codec: how a `Sparse` payload travels.
    linear: payloads of several workers may be added elementwise.
    agreement: what is settled first, or None.
    rungs: shapes -> sizes that a message can have, smallest first. Anything
      hashable; encode gets the one in force as `ctx.rung`.
    choose: (prepared, shared, ctx) -> int32, the number of the smallest rung
      that this worker needs; None where there is one rung.
    at_step: int32 step -> int32, the number of the rung in force, where the
      step alone decides; rungs are densities then. Raises ValueError where
      the step is concrete and cannot be used. None: data decide, or there is
      one rung. Serves plan().
    agreed: whether `choose` gives the same on every worker by itself (a
      schedule does, data do not).
    overflow: (prepared, shared, ctx) -> int32, elements that did not find
      room in the rung; they stay in the memory. None: cannot happen.
    prepare: (signals, shared, ctx) -> `prepared`, which `encode`, `choose`
      and `overflow` get: the work that is the same at every rung, done once
      before one is chosen. The signals themselves where there is none.
    accepts: shape -> whether a leaf of that shape can be compressed at all.
    min_size: leaves with fewer elements stay dense, unless overridden.
    dense_1d: whether 1-D leaves (and scalars) stay dense, unless overridden.
    joined: whether leaves are selected together (one row in a plan).
    init: shapes -> own state, the same on all workers.
    learn: (state, summed payload, shared, ctx) -> own state.
    unbiased: whether the decoded value's expectation is the signal.
    gain: shapes -> the largest factor by which a magnitude that it encodes or
      decodes may exceed the largest that it was given. A worker keeps nothing
      that could overflow on that way. Without a memory 1 is good enough: an
      overflow costs one step.
    raw: whether the payload is the leaves as they are, float32, and coding
      them is left to the exchange.
    usable: step -> bool scalar, whether it can be used in this step (the
      density of a schedule is in range); otherwise all workers reject it.
      None: always.
  """

  name: str
  encode: Callable[[Any, Any, Context], Any]
  decode: Callable[..., Any] = lambda payload, shared, ctx, summands: payload
  codec: Codec | None = None
  linear: bool = False
  agreement: Agreement | None = None
  rungs: Callable[[Sequence[Shape]], tuple[Any, ...]] = lambda shapes: (0,)
  choose: Callable[[Any, Any, Context], jax.Array] | None = None
  at_step: Callable[[jax.Array], jax.Array] | None = None
  agreed: bool = True
  overflow: Callable[[Any, Any, Context], jax.Array] | None = None
  prepare: Callable[[list[Signal], Any, Context], Any] = (
    lambda signals, shared, ctx: signals
  )
  accepts: Callable[[Shape], bool] = lambda shape: True
  min_size: int = 0
  dense_1d: bool = False
  joined: bool = False
  init: Callable[[Sequence[Shape]], Any] = lambda shapes: ()
  learn: Callable[[Any, Any, Any, Context], Any] = (
    lambda state, payload, shared, ctx: state
  )
  unbiased: bool = False
  gain: Callable[[Sequence[Shape]], float] = lambda shapes: 1.0
  raw: bool = False
  usable: Callable[[jax.Array], jax.Array] | None = None


class Encoded(NamedTuple):
  """One worker's message before it is sent.

  Attributes:
    payload: what `Compressor.encode` returned (a Sparse is quantised).
    compressor: its compressor.
    shared: what was agreed.
    ctx: its context.
    dense: leaves that stay dense and ride along, float32.
    healthy: bool scalar: this worker can keep what comes of its gradient.
    owed: the exchange's own state, see `Exchange.init`.
  """

  payload: Any
  compressor: Compressor
  shared: Any
  ctx: Context
  dense: list[jax.Array]
  healthy: jax.Array
  owed: Sequence[jax.Array] = ()


class Exchanged(NamedTuple):
  """What comes back. Sum over workers of `delivered` is P times `mean`.

  Attributes:
    mean: float32 leaves of the group, bit-identical on all workers.
    delivered: leaf by leaf, what of this worker's is in the mean, if the
      step is accepted.
    dense: means of the leaves that stayed dense.
    healthy: bool scalar, the same everywhere: all workers were healthy.
      Otherwise the step is rejected, and the rest of this is not used.
    message_bytes: size of one worker's message; traced where it depends on
      the data, and the largest while a plan is made.
    transport: how it went, for tables.
    total: summed payload (linear exchanges), else None.
    released: leaf by leaf, what the memory may let go of, where that is not
      `delivered`: an exchange that rounds once more credits the rounding to
      the worker that made it, whose memory knows nothing of it. None: the
      same as `delivered`.
    owed: the exchange's new state, if the step is accepted.
  """

  mean: list[jax.Array]
  delivered: list[Delivered]
  dense: list[jax.Array]
  healthy: jax.Array
  message_bytes: int | jax.Array
  transport: str
  total: Any = None
  released: list[Delivered] | None = None
  owed: Sequence[jax.Array] = ()


class Exchange(NamedTuple):
  """How the messages of P workers become one mean.

  Attributes:
    name: for tables and messages.
    run: (encoded, comm) -> Exchanged.
    refuses: compressor -> why it cannot be exchanged this way, or None.
    init: shapes -> what this worker owes because of roundings of the
      exchange's own: a float32 array for each leaf, in the units of a
      memory's `pending`; () where there are none.
  """

  name: str
  run: Callable[[Encoded, Any], Exchanged]
  refuses: Callable[[Compressor], str | None] = lambda compressor: None
  init: Callable[[Sequence[Shape]], Sequence[jax.Array]] = lambda shapes: ()
