"""Exchanges: how the messages of P workers become one mean."""

from gradsparse.exchanges.all_gather import all_gather
from gradsparse.exchanges.all_reduce import all_reduce
from gradsparse.exchanges.gtopk import gtopk
from gradsparse.exchanges.majority import majority
from gradsparse.exchanges.reduce_scatter import reduce_scatter

__all__ = ('all_gather', 'all_reduce', 'gtopk', 'majority', 'reduce_scatter')
