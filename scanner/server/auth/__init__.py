"""Who calls, what they may do, and the trail that this leaves."""
