"""Shared by the families of ops."""
