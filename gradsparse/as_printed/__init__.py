"""Variants that papers print and that training does not need.

Each variant is an entry of a table of the library; an argument of a recipe
takes the entry's name. Importing this package adds the entries. In the library,
only `gradsparse/__init__.py` imports it.

| argument | name | source |
|---|---|---|
| `indices` | 'run_length' | Lin et al., arXiv 1712.01887, section 3.1 |
| `indices` | 'word28' | Tsuzuku et al., arXiv 1802.06058, section 4.2 |
| `topology` | 'tree', 'allgather' | Shi et al., arXiv 1901.04359, alg. 2, 3 |
| `put_back` | 'paper' | Shi et al., algorithm 4 |
| `rounding` | 'paper' | Tsuzuku et al., algorithm 1 |
| `elias` | 'gamma', 'delta' | Elias, IEEE Trans. Inf. Theory 21(2), 1975 |

As in the paper, `gs.variance_based` takes 'word28' by default where values are
'exponent4'.
"""

from gradsparse.as_printed import elias
from gradsparse.as_printed import gtopk
from gradsparse.as_printed import rounding
from gradsparse.as_printed import run_length
from gradsparse.as_printed import word28
from gradsparse.codes.sparse import INDICES
from gradsparse.exchanges.gtopk import PUT_BACK
from gradsparse.exchanges.gtopk import TOPOLOGIES
from gradsparse.memories.variance import ROUNDING
from gradsparse.wire.elias import KINDS

INDICES.update(run_length=run_length.sparse, word28=word28.sparse)
TOPOLOGIES.update(tree=gtopk.tree, allgather=gtopk.all_gather)
PUT_BACK.update(paper=gtopk.put_back)
ROUNDING.update(paper=rounding.PAPER)
KINDS.update(gamma=elias.GAMMA, delta=elias.DELTA)
