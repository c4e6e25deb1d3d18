"""What Ottla gives to other people's tests."""
