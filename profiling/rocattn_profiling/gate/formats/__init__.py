"""The verdict in every output format: terminal, Markdown, JUnit, SARIF, HTML."""
