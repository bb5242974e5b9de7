"""The chain itself: which cases there are, measuring them, judging them, keeping the results."""
