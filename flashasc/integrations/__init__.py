"""Other libraries' attention on flashasc: import the one you need by name."""
