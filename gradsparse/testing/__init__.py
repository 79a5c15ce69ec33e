"""Checks of the laws for a new scheme; they need no test framework.

>>> import gradsparse as gs
>>> def make(axis_name):
...   return gs.dense(axis_name=axis_name)
>>> for case in gs.testing.check_scheme(
...   make,
...   num_workers=(2,),
...   runners=('simulate',),
...   trees={'one': {'w': (9, 7), 'b': (5,)}},
... ):
...   print(case)
2 workers, simulate, one
"""

from gradsparse.testing.cases import TREES
from gradsparse.testing.cases import Case
from gradsparse.testing.check import check_scheme

__all__ = ('TREES', 'Case', 'check_scheme')
