"""Values and checks of arguments: they import no other room of core."""
