"""Jobs as the server stores them, and their outcomes, events and views."""
