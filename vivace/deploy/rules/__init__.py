"""What makes a deployment valid: ordered, named, pure rules."""
