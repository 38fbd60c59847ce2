"""The commands of `evalhouse`, by subject: parse the flags, call one function, print the result."""
