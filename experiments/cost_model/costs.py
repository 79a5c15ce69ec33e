"""How long an exchange takes: alpha-beta costs, and what they imply.

A message of m bytes takes  alpha + m beta  seconds. Each exchange below is a
function of the network, of bytes on the wire and of P workers, and returns
seconds: all links alike, sending and receiving at once, no time for adding
or selecting. The papers count k in bytes of values; with as many bytes of
indices a sparse message has 2 k (`sparse_message_bytes`). Two levels cost the
sum of both, each with its own `Network`.

  >>> network = Network.gtopk_1gbe()
  >>> ring_all_reduce(network, 100e6, workers=32)
  1.770782
  >>> gtopk_butterfly(network, sparse_message_bytes(100e6, 0.001), workers=32)
  0.01118

References:
  Shi et al., arXiv 1901.04359: eqs 4 to 7 and table I.
  Tsuzuku et al., arXiv 1802.06058, section 5: pipelined ring allgatherv,
    in `pipelined_speedup`.
  Lin et al., arXiv 1712.01887, section 5: density that grows; speed-up.
  Wen et al., arXiv 1705.07878: the speed-up model that Lin et al. use.
"""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Network:
  """Latency of a message, alpha, and transfer time of a byte, beta."""

  alpha_s: float
  beta_s_per_byte: float

  @classmethod
  def gtopk_1gbe(cls) -> Network:
    """1 Gbit/s Ethernet as Shi et al. measured it (section IV-C, figure 8).

    They print 0.436 ms and 9e-6 ms a byte; here both are in seconds.
    """
    return cls(alpha_s=0.436e-3, beta_s_per_byte=9e-9)

  @classmethod
  def from_rate(cls, bits_per_second: float, latency_s: float = 0.0) -> Network:
    """A link of a given rate, all of it for payload."""
    return cls(alpha_s=latency_s, beta_s_per_byte=8 / bits_per_second)

  def seconds(self, nbytes: float, messages: float = 1) -> float:
    """Time of `messages` one after another that hold `nbytes` together."""
    return messages * self.alpha_s + nbytes * self.beta_s_per_byte


def sparse_message_bytes(dense_bytes: float, density: float) -> float:
  """2 rho m: the papers' message, each value with an index of its size."""
  return 2 * density * dense_bytes


# --- exchanges -------------------------------------------------------------


def ring_all_reduce(
  network: Network, dense_bytes: float, workers: int
) -> float:
  """2 (P - 1) alpha + 2 (P - 1)/P m beta (Shi et al., eq. 5).

  All-to-all and then all-gather of P-ths of a packed gradient cost the same.
  """
  share = 2 * (workers - 1) / workers
  return network.seconds(share * dense_bytes, 2 * (workers - 1))


def all_gather(network: Network, message_bytes: float, workers: int) -> float:
  """log2(P) alpha + (P - 1) message beta (Shi et al., eq. 6).

  With P not a power of two the logarithm is rounded up.
  """
  rounds = _rounds(workers)
  return network.seconds((workers - 1) * message_bytes, rounds)


def gtopk_tree(network: Network, message_bytes: float, workers: int) -> float:
  """2 log2(P) (alpha + message beta) (Shi et al., eq. 7).

  With P not a power of two the logarithm is rounded up.
  """
  rounds = 2 * _rounds(workers)
  return network.seconds(rounds * message_bytes, rounds)


def gtopk_butterfly(
  network: Network, message_bytes: float, workers: int
) -> float:
  """log2(P) (alpha + message beta): half the tree, for the same result.

  With P not a power of two, floor(log2 P) + 2 rounds.
  """
  core, folds = _core(workers)
  rounds = core.bit_length() - 1 + folds
  return network.seconds(rounds * message_bytes, rounds)


def sparse_all_reduce(
  network: Network,
  message_bytes: float,
  workers: int,
  *,
  density: float,
  dense_bytes: float = math.inf,
) -> float:
  """All-reduce of sparse sums, whose density grows on the way (Lin et al.).

  By recursive doubling: step j sends the sum of 2^j gradients. In the worst
  case no two workers send one coordinate, and each step sends twice as much,
  (P - 1) messages in all (extra workers fold in and out).

  Args:
    network: the network.
    message_bytes: one worker's own message.
    workers: P.
    density: rho of that message.
    dense_bytes: no message exceeds this: a fuller one would be sent dense.
  """
  core, folds = _core(workers)
  # A worker that another one folds into holds two gradients from then on.
  first = 2 if folds else 1
  sums = [min(first << j, workers) for j in range(core.bit_length() - 1)]
  sums += [1, workers][:folds]
  fullest = min(dense_bytes, message_bytes / density)
  nbytes = sum(min(message_bytes * size, fullest) for size in sums)
  return network.seconds(nbytes, len(sums))


# --- what follows from it --------------------------------------------------


def speedup(workers: int, compute_s: float, exchange_s: float) -> float:
  """P compute / (compute + exchange): throughput beside one worker's.

  Each worker keeps its batch, nothing overlaps (Wen et al.). Divided by P it
  is the scaling efficiency (Shi et al., eq. 4).

  Args:
    workers: P.
    compute_s: forward, backward and update of a step on one worker, seconds.
    exchange_s: the exchange and all that compression adds, seconds.
  """
  return workers * (compute_s / (compute_s + exchange_s))


def pipelined_speedup(
  ratio: float, workers: int, block_fraction: float = 0.0
) -> float:
  """T_r / T_v of Tsuzuku et al.; with small blocks 2 (P - 1) c / P^2.

  Args:
    ratio: c, elements over elements sent (all are 32-bit words).
    workers: P, at least 2.
    block_fraction: bytes of a block over those of the dense gradient.
  """
  gathered = workers / ratio + (workers - 1) * block_fraction
  return 2 * (workers - 1) / workers / gathered


def _rounds(workers: int) -> int:
  """log2 P, rounded up."""
  return (workers - 1).bit_length()


def _core(workers: int) -> tuple[int, int]:
  """The largest power of two in P, and 2 more messages if that is not P."""
  core = 1 << (workers.bit_length() - 1)
  return core, 0 if core == workers else 2
