"""Codes: they pack selected numbers into words, and decode the words.

| code | payload | bits an element |
|---|---|---|
| `sparse`, `signs_of` | `Sparse` | an index code and a value code an entry |
| `plain.of_known_places` | `Sparse` | 32 an entry: values alone |
| `plain.of_leaves` | `Leaves` | 32 |
| `plain.bfloat16_of_parts` | `Parts` | 16 |
| `qsgd.of_leaves`, `qsgd.of_parts` | `Leaves`, `Parts` | a level, and norms |
| `one_bit.of_leaves`, `one_bit.of_parts` | the same | 1, and its means |
| `signs` | `Leaves` | 1 |
| `ternary` | `Leaves` | a field wide enough for a sum of P codes |
| `low_rank` | `Leaves` of matrices | two thin factors |
"""

from gradsparse.codes import one_bit
from gradsparse.codes import plain
from gradsparse.codes import qsgd
from gradsparse.codes.low_rank import low_rank
from gradsparse.codes.one_bit import signs
from gradsparse.codes.sparse import signs_of
from gradsparse.codes.sparse import sparse
from gradsparse.codes.ternary import ternary

__all__ = (
  'low_rank',
  'one_bit',
  'plain',
  'qsgd',
  'signs',
  'signs_of',
  'sparse',
  'ternary',
)
