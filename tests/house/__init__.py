"""The rules of the house, checked: floors, doors, cycles, names, documents."""
