"""What commands print and pages show: results as data, and text, tables and progress at the terminal."""
