"""What was asked -> what will run."""
