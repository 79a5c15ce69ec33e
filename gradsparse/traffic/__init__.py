"""Bytes of collectives: formulas, plans, and audits of compiled programs."""
