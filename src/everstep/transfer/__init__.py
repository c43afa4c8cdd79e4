"""Whole histories from one store to another."""
