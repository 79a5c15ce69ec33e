"""Questions that take several runs, or a problem of their own, to answer."""
