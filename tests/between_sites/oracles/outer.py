"""Outer steps: DiLoCo, and Streaming DiLoCo in two schedules.

Every worker w takes inner steps on theta_w, its own copy of the parameters. Now
and then the movement theta - theta_w away from the anchor theta is averaged and
given to an outer optimizer, which moves the anchor, and the workers take the
anchor over. What is copied is equal bit for bit; nothing is added to theta_w.

The outer optimizer is optax.sgd(eta, momentum=mu, nesterov=True), torch's SGD
with Nesterov likewise. The learning rate stays outside of the buffer:

  D <- mean_w (theta - theta_w);  m <- D + mu m
  theta <- theta - eta (D + mu m)

The two schedules of fragments, t counted from 1, F fragments, delay V:

             MaxText                          torchft
  every      S = max(1, round(H / F)),        S = H / F, which must be whole
             Python's round: half to even
  D taken    t mod S == 0                     t mod S == S - V
  f          (t mod (F S)) / S:               number of commits mod F:
             1, 2, ..., F - 1, 0, 1, ...      0, 1, ..., F - 1, 0, ...
  the anchor when D is taken                  V steps after
  moves
  workers    V steps after D was taken        V steps after D was taken
  get it
  delay      any; a fragment may move again   0 <= V < S
             before the workers get it
  merge      alpha theta_w + (1 - alpha)      lerp(theta, theta_w, alpha)
             theta
  abort      none                             see TorchFT

So MaxText's D is V steps later than torchft's, and the first period differs:
torchft takes its first D after S - V inner steps, MaxText after S. Only the
anchor's timing differs otherwise: if the first V inner steps of MaxText move
nothing and its fragments are numbered one on, the workers go the same way. The
anchor is what evaluations see, so it is not the same at every step.

With delay, both take theta_w as it is V steps after D was taken: at alpha = 0
what a worker moved in these V steps is overwritten and counts nowhere.

float32 throughout, in the order of the operations above.

References: DiLoCo, arXiv 2311.08105, algorithm 1; Streaming DiLoCo, arXiv
2501.18512; MaxText's diloco.py; torchft's local_sgd.py at 7eb7087.
"""

import numpy as np
from tests.oracles import leaves


def layer_fragments(num_layers, num_fragments, order):
  """Returns the layers of each fragment, as MaxText divides scanned layers.

  >>> layer_fragments(6, 3, 'strided')
  [[0, 3], [1, 4], [2, 5]]
  >>> layer_fragments(6, 3, 'sequential')
  [[0, 1], [2, 3], [4, 5]]
  """
  if num_layers % num_fragments:
    raise ValueError(f'{num_layers} layers do not make {num_fragments} equal')
  if order == 'strided':
    return [
      list(range(f, num_layers, num_fragments)) for f in range(num_fragments)
    ]
  if order == 'sequential':
    size = num_layers // num_fragments
    return [list(range(f * size, (f + 1) * size)) for f in range(num_fragments)]
  raise ValueError(f"order must be 'strided' or 'sequential', got {order!r}")


def mean(deltas, present=None):
  """The dense exchange: the mean over the workers that took part."""
  taking_part = [
    tree for w, tree in enumerate(deltas) if present is None or present[w]
  ]
  return leaves.worker_mean(taking_part)


class Outer:
  """The anchor, the outer optimizer, and the fragments.

  An exchange is called as exchange(deltas, present), deltas[w][piece], and
  returns the update's pieces; present[w] says who takes part, None that all do.
  Each fragment has its own, with a memory of its own if it has any.

  A worker that is not present gets the anchor like all others. The movement
  that it did not send is then in the exchange's memory, or lost if the exchange
  has none, as the dense mean has none.

  Attributes:
    anchor: anchor[leaf], theta.
    m: m[leaf], the buffer of the momentum, without the learning rate.
    t: inner steps so far.
    moved: the fragment whose anchor the last step moved, or None.
    given: the fragment that the workers got in the last step, or None.
  """

  def __init__(
    self,
    params,
    *,
    fragments=None,
    learning_rate=0.7,
    momentum=0.9,
    nesterov=True,
    exchanges=None,
    dtype=np.float32,
  ):
    """Starts with all workers at params.

    Args:
      params: params[leaf].
      fragments: of each fragment its pieces: positions of leaves, or pairs
        (leaf, index) where a fragment has only some layers of a leaf; None for
        one fragment of everything.
      learning_rate: eta; may be set between two steps.
      momentum: mu.
      nesterov: False for heavy ball: theta <- theta - eta m.
      exchanges: of each fragment, its exchange; None for dense means.
      dtype: of everything.
    """
    self.dtype = dtype
    (self.anchor,) = leaves.copy([params], dtype)
    (self.m,) = leaves.zeros([params], dtype)
    if fragments is None:
      fragments = [range(len(self.anchor))]
    self.fragments = [
      [piece if isinstance(piece, tuple) else (piece, ...) for piece in pieces]
      for pieces in fragments
    ]
    self.exchanges = exchanges or [mean] * len(self.fragments)
    self.learning_rate = learning_rate
    self.momentum = momentum
    self.nesterov = nesterov
    self.t = 0
    self.moved = self.given = None

  def _deltas(self, f, params):
    """theta - theta_w of a fragment, in arrays of its own."""
    return [
      [
        np.array(self.anchor[leaf][index] - tree[leaf][index], self.dtype)
        for leaf, index in self.fragments[f]
      ]
      for tree in params
    ]

  def _move(self, f, deltas, present):
    """The exchange and the outer step: the anchor of a fragment moves."""
    update = self.exchanges[f](deltas, present)
    for (leaf, index), d in zip(self.fragments[f], update, strict=True):
      m = d + self.momentum * self.m[leaf][index]
      self.m[leaf][index] = m
      direction = d + self.momentum * m if self.nesterov else m
      theta = self.anchor[leaf][index]
      self.anchor[leaf][index] = theta + -self.learning_rate * direction
    self.moved = f

  def _give(self, f, params, merge):
    """The workers' fragment becomes merge(theta_w, theta)."""
    for tree in params:
      for leaf, index in self.fragments[f]:
        local, theta = tree[leaf][index], self.anchor[leaf][index]
        tree[leaf][index] = merge(local, theta)
    self.given = f

  def _begin(self, params):
    self.t += 1
    self.moved = self.given = None
    return leaves.copy(params, self.dtype)


def overwrite(local, theta):
  """alpha = 0."""
  del local
  return theta


class DiLoCo(Outer):
  """All parameters at once, every sync_every inner steps."""

  def __init__(self, params, *, sync_every=500, **options):
    super().__init__(params, fragments=None, **options)
    self.sync_every = sync_every

  def step(self, params, present=None):
    """Returns the workers' parameters after inner step t and what follows it.

    Args:
      params: params[w][leaf], after the inner step.
      present: who takes part in the exchange, if there is one; None for all.
    """
    params = self._begin(params)
    if self.t % self.sync_every == 0:
      self._move(0, self._deltas(0, params), present)
      self._give(0, params, overwrite)
    return params


class MaxText(Outer):
  """Streaming DiLoCo in MaxText's schedule: the anchor moves at once.

  In MaxText fragment 0 is all that is not a scanned layer, and fragments 1, 2,
  ... are `layer_fragments` of the scanned layers, so that F is one more than
  its num_diloco_fragments. Here the fragments are whatever is given.
  """

  def __init__(self, params, *, sync_every, delay=0, alpha=0.0, **options):
    super().__init__(params, **options)
    self.spacing = max(1, round(sync_every / len(self.fragments)))
    self.period = len(self.fragments) * self.spacing
    self.delay = delay
    self.alpha = alpha

  def step(self, params, present=None):
    """As DiLoCo's; present is of the exchange, which is where D is taken."""
    params = self._begin(params)
    if self.t % self.spacing == 0:
      f = self.t % self.period // self.spacing
      self._move(f, self._deltas(f, params), present)
    late = self.t - self.delay
    if late > 0 and late % self.spacing == 0:
      self._give(late % self.period // self.spacing, params, self._merge)
    return params

  def _merge(self, local, theta):
    if self.alpha == 0:
      return theta
    return self.alpha * local + (1 - self.alpha) * theta


class TorchFT(Outer):
  """Streaming DiLoCo in torchft's schedule: the anchor moves after the delay.

  An exchange that does not commit (commit=False in the step in which it should
  arrive) is aborted. The anchor and the outer optimizer stay; the fragment of
  every worker is set back to the anchor, whatever alpha is, so what the workers
  moved in it is given up; the other fragments stay as they are. The same
  fragment is tried again, S inner steps later. The exchange counts as never
  made, so a memory of its is what it was before.

  Attributes:
    commits: exchanges that were committed; the fragment is this mod F.
    local_step: inner steps since the last exchange, committed or aborted.
  """

  def __init__(self, params, *, sync_every, delay=0, alpha=0.0, **options):
    super().__init__(params, **options)
    if sync_every % len(self.fragments):
      raise ValueError('sync_every must be a multiple of the fragments')
    self.spacing = sync_every // len(self.fragments)
    if not 0 <= delay < self.spacing:
      raise ValueError('delay must be less than sync_every / fragments')
    if not 0 <= alpha <= 1:
      raise ValueError('alpha must be in [0, 1]')
    self.delay = delay
    self.alpha = alpha
    self.commits = 0
    self.local_step = 0
    self._taken = None

  @property
  def fragment(self):
    return self.commits % len(self.fragments)

  def step(self, params, commit=True, present=None):
    """As DiLoCo's; commit and present are read where the exchange arrives."""
    params = self._begin(params)
    self.local_step += 1
    f = self.fragment
    if self.local_step == self.spacing - self.delay:
      self._taken = self._deltas(f, params)
    if self.local_step == self.spacing:
      if commit:
        self._move(f, self._taken, present)
        self._give(f, params, self._merge)
        self.commits += 1
      else:
        self._give(f, params, overwrite)
      self.local_step = 0
      self._taken = None
    return params

  def _merge(self, local, theta):
    """torch.lerp(theta, local, alpha), exact at both ends."""
    if self.alpha < 0.5:
      return theta + self.alpha * (local - theta)
    return local - (local - theta) * (1 - self.alpha)
