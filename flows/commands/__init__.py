"""The commands of `evalhouse`, a file each: read the flags, call one function, print what it returns."""
