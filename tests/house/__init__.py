"""The rules of the house, checked: floors, doors, sizes, documents."""
