"""Selection: which elements of a vector are the largest.

`top_k` of a whole vector, `top_k_of_each` of several, `sampled_top_k` by a
threshold from a sample, `chunked_top_k` of each chunk; `count` is the k of a
density.
"""

from gradsparse.selection.chunks import chunked_top_k
from gradsparse.selection.exact import count
from gradsparse.selection.exact import top_k
from gradsparse.selection.exact import top_k_of_each
from gradsparse.selection.exact import traced_count
from gradsparse.selection.exact import where
from gradsparse.selection.sampled import capacity
from gradsparse.selection.sampled import sampled_top_k

__all__ = (
  'capacity',
  'chunked_top_k',
  'count',
  'sampled_top_k',
  'top_k',
  'top_k_of_each',
  'traced_count',
  'where',
)
