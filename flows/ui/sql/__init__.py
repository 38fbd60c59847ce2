"""The SQL page: a query, its result as table and chart, and the cookbook."""
