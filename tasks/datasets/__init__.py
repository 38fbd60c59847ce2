"""Files of any understood format read as samples, or refused with all their problems."""
