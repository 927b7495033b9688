"""What a deployment needs of each device's memory."""
