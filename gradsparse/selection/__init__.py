"""Selection of k elements of vectors.

These functions return values and indices:

  top_k                  the largest of one vector
  top_k_of_each          the largest of each of several vectors
  top_k_of_all           the largest of several vectors together
  chunked_top_k_of_each  the largest of each chunk
  tiled_top_k_of_each    the largest of each tile
  sampled_top_k_of_each  about the largest, by thresholds from samples
  drawn_of_each          random elements (indices only)

`count` is k for a density.
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
from gradsparse.selection.tiles import tiled_top_k_of_each

__all__ = (
  'capacity',
  'chunked_top_k_of_each',
  'count',
  'drawn_of_each',
  'sampled_top_k_of_each',
  'tiled_top_k_of_each',
  'top_k',
  'top_k_of_all',
  'top_k_of_each',
  'traced_count',
)
