"""One bench per file: each asks one question, and says what must hold."""
