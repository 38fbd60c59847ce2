"""The warehouse: its tables, views and queries, and the code that writes and reads them."""
