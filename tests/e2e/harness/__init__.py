"""What the end-to-end tests share: a Jupyter server, a notebook in a real browser, a Databricks-like client."""
