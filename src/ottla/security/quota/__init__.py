"""How much clients may take: their quotas, rates, and how long those above a quota are held back."""
