"""Everything needed to write a new scheme, under one name.

`gs.extend` is to gradsparse what `jax.extend` is to JAX. A scheme has three
parts, which `gs.compressed_mean` joins:

  memory      what a worker keeps between steps (`memories`, or a `Memory`)
  compressor  what is sent, and how it is coded (`compressors`, `codes`, or a
              `Compressor` with a `Code`)
  exchange    how the messages become one mean (`exchanges`, or an `Exchange`)

`selection` finds the largest elements. `wire` packs numbers into words.
docs/write_a_scheme.md builds a scheme step by step; `gs.testing.check_scheme`
checks it.
"""

from gradsparse import codes
from gradsparse import compressors
from gradsparse import exchanges
from gradsparse import memories
from gradsparse import selection
from gradsparse import wire
from gradsparse.collectives import Comm
from gradsparse.sockets import Adder
from gradsparse.sockets import Code
from gradsparse.sockets import Compressor
from gradsparse.sockets import CompressorState
from gradsparse.sockets import Context
from gradsparse.sockets import Delivered
from gradsparse.sockets import Exchange
from gradsparse.sockets import Exchanged
from gradsparse.sockets import Extras
from gradsparse.sockets import Full
from gradsparse.sockets import Ladder
from gradsparse.sockets import LeafRule
from gradsparse.sockets import Leaves
from gradsparse.sockets import Limits
from gradsparse.sockets import Marked
from gradsparse.sockets import Memory
from gradsparse.sockets import MemoryFacts
from gradsparse.sockets import Message
from gradsparse.sockets import MessageLeaves
from gradsparse.sockets import OfParts
from gradsparse.sockets import Parts
from gradsparse.sockets import PreReduce
from gradsparse.sockets import Shortcuts
from gradsparse.sockets import Signal
from gradsparse.sockets import Space
from gradsparse.sockets import Sparse
from gradsparse.sockets import Stream
from gradsparse.sockets import Window
from gradsparse.sockets.ownership import local
from gradsparse.sockets.ownership import resized
from gradsparse.sockets.ownership import shared

__all__ = (
  'Adder',
  'Code',
  'Comm',
  'Compressor',
  'CompressorState',
  'Context',
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
  'Shortcuts',
  'Signal',
  'Space',
  'Sparse',
  'Stream',
  'Window',
  'codes',
  'compressors',
  'exchanges',
  'local',
  'memories',
  'resized',
  'selection',
  'shared',
  'wire',
)
