"""The processes of a server: started, watched, restarted and stopped by one supervisor."""
