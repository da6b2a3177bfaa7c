"""The verdict for its readers: terminal, Markdown, JUnit, SARIF, HTML."""
