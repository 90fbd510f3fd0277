"""Probing of the machine; plain facts that can be saved and replayed. Decides nothing."""
