"""The commands: options/ has what each takes; bodies that only print are here, the others in rooms of their own."""
