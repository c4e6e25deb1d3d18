"""The log cleaner: select logs, compact them within a byte budget, and checkpoint how far each is clean."""
