"""Messages that arrive one step late, of any compressor.

Step t, in this order:

1. The messages of step t - 1 arrive. The update is their mean; at the first
   step it is zero. If one worker's message is not good, all workers know: the
   update is NaN everywhere, and every worker puts its own message back into
   its memory.
2. Each worker compresses the gradient of step t with the memory that it has
   now, so what was put back can be sent again at once. The message leaves the
   memory and is on its way.

Step 1 depends on nothing of step t's gradient. A worker whose gradient, message
or memory is not finite leaves its memory as it was (the gradient is given up)
and marks its message as not good.

Nothing is lost otherwise: gradients = updates + on their way + memory.

float32 throughout.

References: delayed exchange as the overlap of between_sites.md describes it
(fact 5, fact 10); the residual of Aji & Heafield, EMNLP 2017.
"""

import numpy as np
from tests.oracles import leaves
from tests.oracles import selection


def residual_top_k(density, *, scope='leaf', chunk_size=4096):
  """Returns compress(memory, gradient): the largest of a residual.

  r <- r + g; the largest |r| are the message and leave r.
  """

  def compress(memory, gradient):
    r = [np.asarray(old + g) for old, g in zip(memory, gradient, strict=True)]
    (message,) = leaves.zeros([r])
    for leaf, offset in selection.largest(
      r, density, scope=scope, chunk_size=chunk_size
    ):
      message[leaf].flat[offset] = r[leaf].flat[offset]
      r[leaf].flat[offset] = 0
    return message, r

  return compress


def add(memory, message):
  """Puts a message back into a memory that is a residual."""
  return [np.asarray(r + x) for r, x in zip(memory, message, strict=True)]


def finite(tree):
  return all(np.all(np.isfinite(leaf)) for leaf in tree)


class Delayed:
  """compress(memory, gradient) returns (message, memory), of one worker.

  The memory is a list of arrays, zeros like the gradient at the start; the
  message is what the others decode, one array a leaf.

  Attributes:
    memory: memory[w][leaf].
    on_its_way: on_its_way[w][leaf], sent in the last step; zeros if not good.
    good: good[w], whether the message of the last step can be used.
    rejected: whether the last step's update is NaN.
    pending: pending[w][leaf], what is in no update yet: memory and message.
      Only where a memory is a residual.
  """

  def __init__(self, compress, put_back=add):
    self.compress = compress
    self.put_back = put_back
    self.memory = None
    self.on_its_way = None
    self.good = None
    self.rejected = False

  @property
  def pending(self):
    return [
      add(memory, message)
      for memory, message in zip(self.memory, self.on_its_way, strict=True)
    ]

  def step(self, gradients):
    """Returns the mean of the messages of the step before, in leaves."""
    gradients = leaves.copy(gradients)
    if self.memory is None:
      self.memory = leaves.zeros(gradients)
      self.on_its_way = leaves.zeros(gradients)
      self.good = [True] * len(gradients)
    update = self._receive()
    for w, gradient in enumerate(gradients):
      message, memory = self.compress(self.memory[w], gradient)
      self.good[w] = finite(gradient) and finite(message) and finite(memory)
      if self.good[w]:
        self.on_its_way[w], self.memory[w] = message, memory
      else:
        (self.on_its_way[w],) = leaves.zeros([gradient])
    return update

  def _receive(self):
    mean = leaves.worker_mean(self.on_its_way)
    self.rejected = not all(self.good)
    if not self.rejected:
      return mean
    for w, message in enumerate(self.on_its_way):
      if self.good[w]:
        self.memory[w] = self.put_back(self.memory[w], message)
    return [np.full_like(leaf, np.nan) for leaf in mean]
