"""Data of cuda/dispatch/tuning as C++ constants: measured plans, figures of the cost model."""
