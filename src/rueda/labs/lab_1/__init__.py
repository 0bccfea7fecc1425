"""What lab 1 draws: figures of gradient descent, computed by the library. No formula of the subject is written here."""
