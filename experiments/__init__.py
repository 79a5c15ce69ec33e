"""Training programs on top of `gradsparse`: data, models, loop, reports.

Nothing in the library imports this package. It needs the `experiments` extra
(`pip install 'gradsparse[experiments]'`): Flax, Orbax, ml_collections,
scikit-learn, matplotlib and rich.
"""
