"""The sockets of a scheme: memory, compressor (with its code), exchange.

GRACE's vocabulary (Xu et al., ICDCS 2021), which the field knows. A scheme is
one choice in each; `compressed_mean` joins them. All are NamedTuples of pure
functions, so a scheme is data and a new one needs no class. A message has one
path, whatever the scheme:

  accumulate   memory      takes the gradient in
  select       compressor  chooses what is sent: Sparse or Leaves; of a rule,
                           what its code has marked before
  round        code        rounds that to what the format can say
  pack         code        makes words of it
  run          exchange    brings the words of all workers together
    unpack     code          reads back what a worker rounded
    decode     code          gives what that stands for, to be added up
  update       memory      makes the optimizer's update of the mean
  sent         memory      lets go of what was sent
  arrived      memory      moves what the mean moves

A compressor sees all leaves of its group at once: whether it works leaf by
leaf or globally is its own business, and every scheme sends one message.
Compressors never talk to other workers; what must be agreed before selecting
(a shared scale, a low-rank basis) goes through their `PreReduce`.
"""

from gradsparse.sockets.compressor import Code
from gradsparse.sockets.compressor import Compressor
from gradsparse.sockets.compressor import CompressorState
from gradsparse.sockets.compressor import Context
from gradsparse.sockets.compressor import Cut
from gradsparse.sockets.compressor import Ladder
from gradsparse.sockets.compressor import LeafRule
from gradsparse.sockets.compressor import Limits
from gradsparse.sockets.compressor import MessageLeaves
from gradsparse.sockets.compressor import OfParts
from gradsparse.sockets.compressor import PreReduce
from gradsparse.sockets.compressor import Signal
from gradsparse.sockets.compressor import Stream
from gradsparse.sockets.deliveries import Delivered
from gradsparse.sockets.deliveries import Full
from gradsparse.sockets.deliveries import Window
from gradsparse.sockets.exchange import Exchange
from gradsparse.sockets.exchange import Exchanged
from gradsparse.sockets.exchange import Extras
from gradsparse.sockets.exchange import Message
from gradsparse.sockets.memory import Memory
from gradsparse.sockets.memory import MemoryFacts
from gradsparse.sockets.memory import checked_state
from gradsparse.sockets.space import Shape
from gradsparse.sockets.space import Space
from gradsparse.sockets.space import sum_in_rows
from gradsparse.sockets.space import sums_few_rows
from gradsparse.sockets.values import Leaves
from gradsparse.sockets.values import Marked
from gradsparse.sockets.values import Parts
from gradsparse.sockets.values import Sent
from gradsparse.sockets.values import Sparse

__all__ = (
  'Code',
  'Compressor',
  'CompressorState',
  'Context',
  'Cut',
  'Delivered',
  'Exchange',
  'Exchanged',
  'Extras',
  'Full',
  'Ladder',
  'LeafRule',
  'Leaves',
  'Limits',
  'Marked',
  'Memory',
  'MemoryFacts',
  'Message',
  'MessageLeaves',
  'OfParts',
  'Parts',
  'PreReduce',
  'Sent',
  'Shape',
  'Signal',
  'Space',
  'Sparse',
  'Stream',
  'Window',
  'checked_state',
  'sum_in_rows',
  'sums_few_rows',
)
