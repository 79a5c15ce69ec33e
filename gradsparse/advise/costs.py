"""A model of the time of a step: bytes over the link, rounds, and arithmetic.

The bytes are those of `gs.plan`. An exchange of b bytes in r rounds takes
r latency + 8 b / bandwidth. Arithmetic and exchange follow the backward pass;
only a dense exchange overlaps it.

The expected range is measured. In experiments/results/exchange.json, a step
whose arithmetic was known took 0.8 to 2 times the model's time in nine of ten
rows. tests/advise/ranking_test.py checks that schemes whose ranges do not
overlap are in the measured order in all of that record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

# Measured over modelled time that an exchange adds to a step.
LEAST, MOST = 0.8, 2.0
# Assumption: a guess of arithmetic is wrong by this factor at most.
GUESS = 2.0

Wins = Literal['below', 'always', 'never']


class Link(NamedTuple):
  """A worker's link to the others: full duplex, the same for all workers.

  Attributes:
    bits_per_second: a worker's bandwidth in one direction; all its devices
      share it.
    latency_s: latency of one message, seconds.
  """

  bits_per_second: float
  latency_s: float = 0.0


class Exchange(NamedTuple):
  """The traffic of a scheme's exchange.

  Attributes:
    sent_bytes: bytes that a worker sends in one exchange, all of its devices
      together.
    rounds: number of successive messages.
    hidden_s: the time that the backward pass can hide, seconds.
  """

  sent_bytes: int
  rounds: int = 0
  hidden_s: float = 0.0

  def seconds(self, link: Link) -> float:
    """The time of the exchange, seconds."""
    return (
      self.rounds * link.latency_s + 8 * self.sent_bytes / link.bits_per_second
    )

  def exposed(self, link: Link, factor: float = 1.0) -> float:
    """Seconds not hidden by the backward pass, if it takes `factor` as long."""
    return max(0.0, factor * self.seconds(link) - self.hidden_s)


class Span(NamedTuple):
  """The model's time, and the range of a measured time, seconds."""

  expected: float
  least: float
  most: float


def added(
  exchange: Exchange,
  link: Link,
  code_s: float,
  *,
  guessed: bool = False,
  sync_every: int = 1,
) -> Span:
  """Seconds that an exchange adds to a step, averaged over `sync_every` steps.

  Args:
    exchange: the exchange's traffic.
    link: a worker's link.
    code_s: arithmetic of one exchange, seconds.
    guessed: whether code_s is a guess.
    sync_every: H; there is one exchange in H steps.
  """
  guess = GUESS if guessed else 1.0

  def at(exchange_factor, code_factor):
    exposed = exchange.exposed(link, exchange_factor)
    return (exposed + code_factor * code_s) / sync_every

  return Span(at(1, 1), at(LEAST, LEAST / guess), at(MOST, MOST * guess))


def rounds(transports: Iterable[str], workers: int) -> int:
  """The number of successive messages, by the transports of a plan's rows.

  An all-reduce has 2 (P - 1), as has a reduce-scatter with its all-gather; an
  all-gather P - 1, as has a vote of all with all; a butterfly floor(log2 P),
  and two more if P is not a power of two; a tree up and down 2 ceil(log2 P).
  """
  total = 0
  for transport in set(transports):
    if 'butterfly' in transport:
      core = workers.bit_length() - 1
      total += core + (2 if workers > 1 << core else 0)
    elif 'tree' in transport:
      total += 2 * (workers - 1).bit_length()
    elif transport.endswith(('gather', 'vote')):
      total += workers - 1
    else:
      total += 2 * (workers - 1)
  return total


def break_even(
  baseline: Exchange,
  scheme: Exchange,
  latency_s: float,
  code_s: float,
  sync_every: int = 1,
) -> tuple[Wins, float | None]:
  """The bandwidth below which a scheme's step is shorter than the baseline's.

  Args:
    baseline: an exchange that is partly hidden.
    scheme: an exchange that is not hidden.
    latency_s: latency of one message, seconds.
    code_s: arithmetic of one exchange of the scheme, seconds.
    sync_every: H of the scheme.

  Returns:
    'below' with bits a second, or 'always' or 'never' with None.
  """
  saved = baseline.sent_bytes - scheme.sent_bytes / sync_every
  # The scheme's fixed time, and the hidden time of the baseline.
  fixed = (code_s + scheme.rounds * latency_s) / sync_every
  fixed += baseline.hidden_s - baseline.rounds * latency_s
  if saved <= 0:
    return 'never', None
  if fixed <= 0:
    return 'always', None
  return 'below', 8 * saved / fixed


def sgd_step_s(elements: float, bytes_per_second: float) -> float:
  """Time of a step of momentum SGD, bound by memory: five float32 arrays."""
  return 5 * 4 * elements / bytes_per_second
