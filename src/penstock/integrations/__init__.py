"""What ties penstock to other packages; each module needs the extra of its name."""
