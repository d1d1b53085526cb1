"""What every part that works on this machine shares."""
