"""The state of a scheme: what it holds, how to read it, how to switch."""

from gradsparse.state.inspection import find
from gradsparse.state.inspection import is_scheme
from gradsparse.state.inspection import is_stacked
from gradsparse.state.inspection import metrics
from gradsparse.state.inspection import pending
from gradsparse.state.scheme import CompressedMeanState
from gradsparse.state.scheme import Stats
from gradsparse.state.switching import switch

__all__ = (
  'CompressedMeanState',
  'Stats',
  'find',
  'is_scheme',
  'is_stacked',
  'metrics',
  'pending',
  'switch',
)
