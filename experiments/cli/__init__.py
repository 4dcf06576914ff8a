"""What every command does around its work, and how it speaks on a terminal."""
