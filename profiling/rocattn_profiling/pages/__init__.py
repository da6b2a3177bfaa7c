"""What all pages share: templates, charts, quantities as people read them."""
