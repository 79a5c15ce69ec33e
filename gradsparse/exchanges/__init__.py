"""Exchanges: how the messages of P workers become one mean."""

from gradsparse.exchanges.all_gather import all_gather
from gradsparse.exchanges.all_reduce import all_reduce
from gradsparse.exchanges.gtopk import gtopk
from gradsparse.exchanges.majority import majority
from gradsparse.exchanges.reduce_scatter import reduce_scatter
from gradsparse.exchanges.row_codes import RowCode
from gradsparse.exchanges.row_codes import bfloat16_words
from gradsparse.exchanges.row_codes import one_bit_words
from gradsparse.exchanges.row_codes import qsgd_words

__all__ = (
  'RowCode',
  'all_gather',
  'all_reduce',
  'bfloat16_words',
  'gtopk',
  'majority',
  'one_bit_words',
  'qsgd_words',
  'reduce_scatter',
)
