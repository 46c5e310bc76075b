"""What is in the wheel, which kernel a call runs, and what a machine lacks for the ops."""
