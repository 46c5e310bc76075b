"""Contents of the wheel, the kernel that a call runs, and the doctor of a machine."""
