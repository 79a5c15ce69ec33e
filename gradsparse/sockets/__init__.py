"""The three parts of a scheme: memory, compressor (with its code), exchange.

The names are GRACE's (Xu et al., ICDCS 2021). `compressed_mean` joins one of
each to a scheme. All are NamedTuples of pure functions, so a scheme is data and
a new one needs no class. The path of a message is the same for all schemes:

  accumulate   memory      adds the gradient
  select       compressor  chooses what is sent: Sparse or Leaves, or with a
                           rule the elements that its code has marked
  round        code        rounds it to the format's precision
  pack         code        packs it into words
  run          exchange    sends the words and combines those of all workers
    unpack     code          unpacks a worker's words
    decode     code          decodes them to values, to be summed
  update       memory      turns the mean into the optimizer's update
  sent         memory      subtracts what was sent
  arrived      memory      updates state that depends on the mean

A compressor sees all leaves of its message at once, and may work leaf by leaf
or globally. Compressors do not communicate; values that workers must share
before selection (a scale, a low-rank basis) go through `PreReduce`.
"""

from gradsparse.sockets.compressor import Adder
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
from gradsparse.sockets.compressor import Shortcuts
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
from gradsparse.sockets.memory import first_state
from gradsparse.sockets.space import Shape
from gradsparse.sockets.space import Space
from gradsparse.sockets.space import sum_by_leaf
from gradsparse.sockets.space import sums_by_leaf
from gradsparse.sockets.values import Leaves
from gradsparse.sockets.values import Marked
from gradsparse.sockets.values import Parts
from gradsparse.sockets.values import Sent
from gradsparse.sockets.values import Sparse

__all__ = (
  'Adder',
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
  'Shortcuts',
  'Signal',
  'Space',
  'Sparse',
  'Stream',
  'Window',
  'checked_state',
  'first_state',
  'sum_by_leaf',
  'sums_by_leaf',
)
