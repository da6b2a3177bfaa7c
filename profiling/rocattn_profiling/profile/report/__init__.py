"""The report on a profile: limits, findings, rooflines, pages."""
