"""Checks the laws on a scheme of one's own; needs no test framework.

def make(axis_name):
return gs.compressed_mean(my_memory, my_compressor, my_exchange,
axis_name=axis_name)

gs.testing.check_scheme(make)
"""

from gradsparse.testing.cases import TREES
from gradsparse.testing.cases import Case
from gradsparse.testing.check import check_scheme

__all__ = ('TREES', 'Case', 'check_scheme')
