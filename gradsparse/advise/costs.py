"""How long a step takes: bytes over the link, rounds, and arithmetic.

The bytes are those of `gs.plan`. An exchange of b bytes in r rounds takes
r latency + 8 b / bandwidth; arithmetic and exchange follow the backward pass,
but for a dense exchange, which runs beside it.

The error that is printed is measured. In experiments/results/exchange.json a
step whose arithmetic was known took 0.8 to 2 times what this model says in nine
of ten rows. tests/advise/ranking_test.py holds that schemes whose ranges are
apart are in the measured order in all of that record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

# What is added to a step, as measured, over what the model says.
LEAST, MOST = 0.8, 2.0
# A guess of arithmetic may be wrong by this factor too: an assumption.
GUESS = 2.0

Wins = Literal['below', 'always', 'never']


class Link(NamedTuple):
  """A worker's link to the others; all alike, sending and receiving at once.

  Attributes:
    bits_per_second: of a worker, whatever the number of its devices.
    latency_s: of one message.
  """

  bits_per_second: float
  latency_s: float = 0.0


class Exchange(NamedTuple):
  """What a scheme puts on the link.

  Attributes:
    sent_bytes: by a worker in one exchange, all of its devices together.
    rounds: messages that follow each other.
    hidden_s: what of it fits beside the backward pass, seconds.
  """

  sent_bytes: int
  rounds: int = 0
  hidden_s: float = 0.0

  def seconds(self, link: Link) -> float:
    """How long it takes."""
    return (
      self.rounds * link.latency_s + 8 * self.sent_bytes / link.bits_per_second
    )

  def exposed(self, link: Link, factor: float = 1.0) -> float:
    """What of it the backward pass does not hide, if it takes longer so."""
    return max(0.0, factor * self.seconds(link) - self.hidden_s)


class Span(NamedTuple):
  """Seconds: what the model says, and between what a measurement may be."""

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
  """What an exchange adds to a step, on average over `sync_every` steps.

  Args:
    exchange: what is sent.
    link: over which.
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
  """Messages that follow each other, by the transports of a plan's rows.

  2 (P - 1) of an all-reduce and of a reduce-scatter with its all-gather, P - 1
  of an all-gather, log2 P of a butterfly, two more if P is no power of two.
  """
  total = 0
  for transport in set(transports):
    if 'butterfly' in transport:
      core = workers.bit_length() - 1
      total += core + (2 if workers > 1 << core else 0)
    elif 'gather' in transport or 'vote' in transport:
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
  """Below which bandwidth a scheme's step is shorter than the baseline's.

  Args:
    baseline: of which a part is hidden.
    scheme: of which nothing is.
    latency_s: of one message.
    code_s: arithmetic of one exchange of the scheme, seconds.
    sync_every: H of the scheme.

  Returns:
    'below' with bits a second, or 'always' or 'never' with None.
  """
  saved = baseline.sent_bytes - scheme.sent_bytes / sync_every
  # The scheme's fixed time, and what the baseline may take without showing it.
  fixed = (code_s + scheme.rounds * latency_s) / sync_every
  fixed += baseline.hidden_s - baseline.rounds * latency_s
  if saved <= 0:
    return 'never', None
  if fixed <= 0:
    return 'always', None
  return 'below', 8 * saved / fixed


def sgd_step_s(elements: float, bytes_per_second: float) -> float:
  """A step of momentum SGD if memory alone takes time: five float32 arrays."""
  return 5 * 4 * elements / bytes_per_second
