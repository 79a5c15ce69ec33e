"""Joins the three sockets to one optax transformation."""
