"""Whether to compress, and with which scheme: `gs.advise`, its command line.

  python -m gradsparse.advise --params=25e6 --step_ms=150 --workers=8 \
    --bandwidth=1gbit

The advice is a verdict (which may be "do not compress"), a table, and the code
to use. docs/choose.md explains how to read it.
"""

from gradsparse.advise.advice import Advice
from gradsparse.advise.advice import Row
from gradsparse.advise.advising import advise
from gradsparse.advise.candidates import Candidate

__all__ = ('Advice', 'Candidate', 'Row', 'advise')
