"""The results file, and the tables, plots and documents made of it, without a GPU."""
