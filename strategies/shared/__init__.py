"""What strategies share: a listing of the folder above lists strategies."""
