"""Scripts and command lines -> a deployment."""
