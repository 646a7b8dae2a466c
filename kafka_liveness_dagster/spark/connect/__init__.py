"""Connection to Spark Connect: sessions, and jobs that can be canceled."""
