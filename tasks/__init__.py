"""Data sets, their partition over clients, models, losses and metrics."""
