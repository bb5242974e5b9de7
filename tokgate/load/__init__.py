"""What is asked of a server and what came back: prompts, the measuring client, Samples."""
