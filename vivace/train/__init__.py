"""Training of what drafts for a served model, on the machine that serves it."""
