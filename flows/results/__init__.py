"""The results that commands print and pages show: as data, and as text, tables and progress at the terminal."""
