"""Reader groups: who reads which bucket of a table, by which epoch, and from where on."""
