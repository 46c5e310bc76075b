"""What the families of ops share."""
