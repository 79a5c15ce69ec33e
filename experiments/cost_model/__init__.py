"""How long an exchange takes by the papers' models, and their figures of it.

`python -m experiments.cost_model` draws them.
"""
