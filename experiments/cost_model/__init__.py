"""How long an exchange takes by the papers' models.

`python -m experiments.cost_model` sets what the papers print beside them.
"""
