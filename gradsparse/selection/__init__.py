"""Selection: which elements of a vector are the largest.

`top_k` of a vector, `top_k_of_each` of several, `top_k_of_all` of several
together, `sampled_top_k_of_each` by thresholds from samples,
`chunked_top_k_of_each` of each chunk, `drawn_of_each` at random; `count` is the
k of a density.
"""

from gradsparse.selection.chunks import chunked_top_k_of_each
from gradsparse.selection.drawn import drawn_of_each
from gradsparse.selection.exact import count
from gradsparse.selection.exact import top_k
from gradsparse.selection.exact import top_k_of_all
from gradsparse.selection.exact import top_k_of_each
from gradsparse.selection.exact import traced_count
from gradsparse.selection.sampled import capacity
from gradsparse.selection.sampled import sampled_top_k_of_each

__all__ = (
  'capacity',
  'chunked_top_k_of_each',
  'count',
  'drawn_of_each',
  'sampled_top_k_of_each',
  'top_k',
  'top_k_of_all',
  'top_k_of_each',
  'traced_count',
)
